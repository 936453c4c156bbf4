"""The model of ``graph_forecast``: attention over time for each node, then over the graph of its day.

An LSTM reads each asset's window, and its last state attends to all states.  Layers of graph attention
(GATv2, arXiv:2105.14491, with the correlation as edge feature) then mix the assets of a day.  Each node has
a list of K neighbours, so attention is a softmax over one dimension, and the forward pass needs no scatter.
The backward pass of ``index_select`` is ``index_add``, which is deterministic on CPU and CUDA.

Variable selection and frequency-adaptive normalisation (``jobs.workloads.graph_forecast.selection``) are
parts that a plan asks for.  Where stocks are not listed on every day, ``present`` is one more feature, and
the attention over time leaves out the days on which a stock was not listed.

Legend: B days, N assets, M = B * N nodes, T days of a window, F features, C width, H heads, D width of a
head, K edges into a node, the last one from itself, k kinds of outcomes, J horizons, P numbers of an outcome.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.workloads.graph_forecast.selection import FrequencyNormalisation, VariableSelection


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of the model that follow from the data and the loss."""

    features: int
    kinds: int
    numbers: int
    gaps: bool = False
    """True if ``present`` is given, as one more feature."""


class TemporalEncoder(nn.Module):
    """Encodes each node's window as one vector: the last LSTM state plus its attention over all states."""

    def __init__(self, plan: GraphForecast, features: int) -> None:
        super().__init__()
        width = plan.hidden
        self.heads = plan.heads
        self.lift = (
            VariableSelection(features, width, plan.dropout)
            if plan.variable_selection
            else nn.Linear(features, width)
        )
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(plan.dropout)

    def forward(self, features_MTF: Tensor, present_MT: Tensor | None = None) -> Tensor:
        states_MTC, _ = self.lstm(F.gelu(self.lift(features_MTF)))
        last_MC = states_MTC[:, -1]
        query_MH1D = self._heads(self.query(last_MC)[:, None])
        key_MHTD, value_MHTD = map(self._heads, self.key_value(states_MTC).chunk(2, dim=-1))
        mask_M11T = None if present_MT is None else present_MT[:, None, None]
        found_MH1D = F.scaled_dot_product_attention(query_MH1D, key_MHTD, value_MHTD, attn_mask=mask_M11T)
        return self.norm(last_MC + self.dropout(self.out(found_MH1D.flatten(1))))

    def _heads(self, states_MTC: Tensor) -> Tensor:
        nodes, days, width = states_MTC.shape
        return states_MTC.view(nodes, days, self.heads, width // self.heads).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of all days of a batch: the source among its M nodes, and the correlation."""

    sender_MK: Tensor
    correlation_MK: Tensor
    absent_MK: Tensor

    @classmethod
    def of(cls, neighbours_BNK: Tensor, correlations_BNK: Tensor) -> "Edges":
        """Return the graphs of a batch joined into one, with a self-loop as the last edge of each node."""
        days, nodes, _ = neighbours_BNK.shape
        own_MK = torch.arange(days * nodes, device=neighbours_BNK.device)[:, None]
        shift_B11 = nodes * torch.arange(days, device=neighbours_BNK.device)[:, None, None]
        sender_MK = (neighbours_BNK + shift_B11).flatten(0, 1)
        correlation_MK = F.pad(correlations_BNK.flatten(0, 1), (0, 1), value=1.0)
        absent_MK = F.pad(sender_MK == own_MK, (0, 1), value=False)
        return cls(torch.cat([sender_MK, own_MK], dim=1), correlation_MK, absent_MK)


class GraphAttention(nn.Module):
    """Adds the attention-weighted messages of its neighbours to each node."""

    def __init__(self, plan: GraphForecast) -> None:
        super().__init__()
        width, self.heads = plan.hidden, plan.heads
        self.sender = nn.Linear(width, width)
        self.receiver = nn.Linear(width, width)
        self.edge = nn.Linear(2, width, bias=False)  # the correlation, and its absolute value
        self.score_HD = nn.Parameter(torch.empty(plan.heads, width // plan.heads))
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(plan.dropout)
        nn.init.xavier_uniform_(self.score_HD)

    def forward(self, x_MC: Tensor, edges: Edges) -> Tensor:
        nodes, edges_each = edges.sender_MK.shape
        shape = (nodes, edges_each, self.heads, -1)
        sent_MKHD = self.sender(x_MC).index_select(0, edges.sender_MK.flatten()).view(shape)
        strength_MK2 = torch.stack([edges.correlation_MK, edges.correlation_MK.abs()], dim=-1)
        asked_MKHD = self.receiver(x_MC).view(nodes, 1, self.heads, -1) + self.edge(strength_MK2).view(shape)
        score_MKH = (F.leaky_relu(sent_MKHD + asked_MKHD, 0.2) * self.score_HD).sum(-1)
        score_MKH = score_MKH.masked_fill(edges.absent_MK[..., None], float("-inf"))
        weight_MKH = self.dropout(score_MKH.softmax(dim=1))
        mixed_MC = (weight_MKH[..., None] * sent_MKHD).sum(1).flatten(1)
        return self.norm(x_MC + F.gelu(self.out(mixed_MC)))


class Forecaster(nn.Module):
    """Forecasts (B, N, k, J, P) numbers of every node from windows and edges."""

    def __init__(self, plan: GraphForecast, sizes: ModelSizes, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.shape = (sizes.kinds, len(plan.horizons), sizes.numbers)
        self.encoder = TemporalEncoder(plan, sizes.features + sizes.gaps)
        self.graph = nn.ModuleList(GraphAttention(plan) for _ in range(plan.layers))
        self.join = nn.Linear(2 * plan.hidden, plan.hidden)
        self.dropout = nn.Dropout(plan.dropout)
        self.head = nn.Linear(plan.hidden, sizes.kinds * len(plan.horizons) * sizes.numbers)
        if plan.frequencies is not None:
            self.normalise = FrequencyNormalisation(plan.window, plan.frequencies)
            self.main = nn.Linear(plan.window * sizes.features, plan.hidden)

    def forward(
        self,
        features_BNTF: Tensor,
        neighbours_BNK: Tensor,
        correlations_BNK: Tensor,
        present_BNT: Tensor | None = None,
    ) -> Tensor:
        days, nodes = features_BNTF.shape[:2]
        edges = Edges.of(neighbours_BNK, correlations_BNK)
        alone_MC = self._alone(features_BNTF.flatten(0, 1), present_BNT)
        mixed_MC = alone_MC
        for layer in self.graph:
            mixed_MC = self._through(layer, mixed_MC, edges)
        joined_MC = F.gelu(self.join(torch.cat([alone_MC, mixed_MC], dim=1)))
        return self.head(self.dropout(joined_MC)).view(days, nodes, *self.shape)

    def _alone(self, features_MTF: Tensor, present_BNT: Tensor | None) -> Tensor:
        """Return one vector for each node, from its own window."""
        main_MTF = None
        if hasattr(self, "normalise"):
            features_MTF, main_MTF = self.normalise(features_MTF)
        present_MT = None
        if present_BNT is not None:
            listed_MT = present_BNT.flatten(0, 1)
            features_MTF = torch.cat([features_MTF, listed_MT[..., None].to(features_MTF.dtype)], dim=-1)
            present_MT = listed_MT.index_fill(1, torch.tensor([-1], device=listed_MT.device), value=True)
        alone_MC = self._through(self.encoder, features_MTF, present_MT)
        return alone_MC if main_MTF is None else alone_MC + self.main(main_MTF.flatten(1))

    def _through(self, layer: nn.Module, *inputs: Tensor | Edges | None) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)
