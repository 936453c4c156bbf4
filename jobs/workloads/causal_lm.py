"""Trains a decoder-only transformer over bytes, on any directory of text.

Shape legend: B sequences, T tokens, C width, H heads, D width of a head, V vocabulary.

Attention is either fused with ``is_causal``, or uses an explicit mask that is cached or rebuilt in
every forward pass.  These are the variants of the project "AGI2" before and after its optimisation.
The input and the output embedding share one tensor.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the conventional name
from torch.utils.checkpoint import checkpoint

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract import Profile
from jobs.contract.plans.causal_lm import CausalLm
from jobs.data.text import Corpus, corpus_directory, read_corpus, unigram_nats, windows
from jobs.training.batches import Batch
from jobs.training.randomness import seed_all
from jobs.workloads.common.parameters import decayed_matrices
from jobs.workloads.protocol import BuildContext, Evaluation

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention, computed as the switch ``attention`` selects."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self._kept_TT: dict[tuple[int, torch.device], Tensor] = {}

    def forward(self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
        if self.how == "fused":
            return F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        scores_BHTT = q_BHTD @ k_BHTD.transpose(2, 3) / math.sqrt(q_BHTD.shape[-1])
        hidden_TT = self._mask(q_BHTD.shape[2], q_BHTD.device)
        return scores_BHTT.masked_fill(hidden_TT, -math.inf).softmax(-1).to(v_BHTD.dtype) @ v_BHTD

    def _mask(self, time: int, device: torch.device) -> Tensor:
        """Return a mask that is True where attention is not allowed."""
        if self.how == "rebuilt_mask":
            return torch.ones(time, time, dtype=torch.bool, device=device).triu(1)
        if (time, device) not in self._kept_TT:
            self._kept_TT[time, device] = torch.ones(time, time, dtype=torch.bool, device=device).triu(1)
        return self._kept_TT[time, device]


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, plan: CausalLm, attention: str) -> None:
        super().__init__()
        self.attention = Attention(attention)
        self.heads = plan.heads
        self.attention_norm = nn.LayerNorm(plan.width)
        self.qkv = nn.Linear(plan.width, 3 * plan.width)
        self.attention_out = nn.Linear(plan.width, plan.width)
        self.feed_norm = nn.LayerNorm(plan.width)
        self.feed_in = nn.Linear(plan.width, 4 * plan.width)
        self.feed_out = nn.Linear(4 * plan.width, plan.width)
        self.dropout = nn.Dropout(plan.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.dropout(self._attend(self.attention_norm(x_BTC)))
        hidden_BTC = self.feed_out(F.gelu(self.feed_in(self.feed_norm(x_BTC))))
        return x_BTC + self.dropout(hidden_BTC)

    def _attend(self, x_BTC: Tensor) -> Tensor:
        batch, time, width = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x_BTC).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y_BHTD = self.attention(q_BHTD, k_BHTD, v_BHTD)
        return self.attention_out(y_BHTD.transpose(1, 2).reshape(batch, time, width))


class Transformer(nn.Module):
    """Predicts the distribution of the next byte at every position."""

    def __init__(self, plan: CausalLm, profile: Profile) -> None:
        super().__init__()
        self.recompute = profile.activation_checkpointing
        self.token = nn.Embedding(VOCABULARY, plan.width)
        self.position = nn.Embedding(plan.context, plan.width)
        self.dropout = nn.Dropout(plan.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(plan, profile.attention) for _ in range(plan.layers))
        self.norm = nn.LayerNorm(plan.width)
        self.apply(_initialise)
        for block in self.blocks:  # the sum over all layers begins at the scale of one layer
            for out in (block.attention_out, block.feed_out):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * plan.layers))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.dropout(self.token(tokens_BT) + self.position(positions_T))
        for block in self.blocks:
            x_BTC = checkpoint(block, x_BTC, use_reentrant=False) if self.recompute else block(x_BTC)
        return F.linear(self.norm(x_BTC), self.token.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class _CountedAttention(Attention):
    """Counts how often a mask is asked for."""

    asked = 0

    def _mask(self, time: int, device: torch.device) -> Tensor:
        self.asked += 1
        return super()._mask(time, device)


def _observed_attention(how: str) -> str:
    """Return the name of what two passes of attention do about masks."""
    attention, one_BHTD = _CountedAttention(how), torch.ones(1, 1, 2, 1)
    for _ in range(2):
        attention(one_BHTD, one_BHTD, one_BHTD)
    if not attention.asked:
        return "fused"
    return "cached_mask" if attention._kept_TT else "rebuilt_mask"  # noqa: SLF001 - of the class above


@dataclass(frozen=True, slots=True)
class Text:
    """The corpus, and windows of it."""

    corpus: Corpus
    plan: CausalLm
    seed: int

    @property
    def resident_bytes(self) -> int:
        return self.corpus.train_N.numel() + self.corpus.held_out_N.numel()

    def on(self, device: torch.device) -> "Text":
        corpus = self.corpus
        moved = replace(corpus, train_N=corpus.train_N.to(device), held_out_N=corpus.held_out_N.to(device))
        return replace(self, corpus=moved)

    def batch(self, step: int) -> Batch:
        return self._windows(self.corpus.train_N, "batch", step)

    def held_out(self, index: int) -> Batch:
        return self._windows(self.corpus.held_out_N, "held-out", index)

    def _windows(self, text_N: Tensor, purpose: str, number: int) -> Batch:
        plan = self.plan
        return {"tokens": windows(text_N, plan.batch_size, plan.context + 1, self.seed, purpose, number)}


class CausalLanguageModel:
    """The workload: corpus, model and loss of one spec."""

    item = "token"

    def __init__(self, plan: CausalLm, setting: BuildContext) -> None:
        self.plan = plan
        corpus = read_corpus(corpus_directory(plan.data), plan.include, plan.context + 1)
        self.source = Text(corpus, plan, setting.seed)
        seed_all(setting.seed, "weights")
        self.model = Transformer(plan, setting.switches.profile)
        how = setting.switches.profile.attention
        setting.switches.applied("attention", verified=_observed_attention(how) == how)
        setting.switches.applied("activation_checkpointing")

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * self.plan.context

    @property
    def train_items(self) -> int:
        return self.source.corpus.train_N.numel()

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.train_items // self.items_per_step)

    @cached_property
    def baseline_loss(self) -> float:
        return unigram_nats(self.source.corpus.train_N)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        return {
            MODEL: model_signature(self.model, plan.kind, plan.heads),
            CORPUS: self.source.corpus.sha256,
            SCHEDULE: schedule_signature(plan, plan.dropout),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decayed_matrices(self.model, self.plan.weight_decay)

    def loss_sum(self, batch: Batch) -> Tensor:
        tokens_BT = batch["tokens"].long()
        logits_BTV = self.model(tokens_BT[:, :-1])
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten(), reduction="sum")

    def count(self, batch: Batch) -> int:
        tokens_BT = batch["tokens"]
        return tokens_BT.shape[0] * (tokens_BT.shape[1] - 1)

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": self.loss_sum(batch), "count": torch.tensor(self.count(batch))}

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        return Evaluation(
            {"eval_loss": sums["loss"] / sums["count"]}, {"eval_loss": self.baseline_loss}, "eval_loss"
        )
