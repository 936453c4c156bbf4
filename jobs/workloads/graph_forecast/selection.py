"""Parts of the model that weigh features and take frequencies out of windows.

*Variable selection* is that of the Temporal Fusion Transformer (arXiv:1912.09363): a gated residual network
for each feature, and one that gives their weights, which add up to 1.  The networks of all features are
computed together, where the source project (gogooku3) had a loop over them.

*Frequency-adaptive normalisation* (arXiv:2409.20371) takes the strongest frequencies out of each window of
each feature, because they are what changes from one period to another; the rest goes through the encoder,
and what was taken out adds a forecast of its own.  The transform is a product with fixed float32 matrices.

Legend: M nodes, T days of a window, F features, C width, K frequencies, Z = T // 2 + 1 frequencies in all.
"""
# ruff: noqa: N803, N806 - tensors carry their shape, and the conventional name

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GatedResidual(nn.Module):
    """A gated residual network: two layers, a gate that can close them, and a connection around them."""

    def __init__(self, width_in: int, width: int, width_out: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(width_in, width)
        self.second = nn.Linear(width, width)
        self.gate = nn.Linear(width, 2 * width_out)
        self.around = nn.Linear(width_in, width_out)
        self.norm = nn.LayerNorm(width_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(F.elu(self.first(x)))
        return self.norm(self.around(x) + F.glu(self.gate(self.dropout(hidden)), dim=-1))


class FeatureNetworks(nn.Module):
    """One gated residual network for each feature, from one number to C, all of them at once."""

    def __init__(self, features: int, width: int, dropout: float) -> None:
        super().__init__()
        self.first_FC = nn.Parameter(torch.empty(features, width))
        self.first_bias_FC = nn.Parameter(torch.zeros(features, width))
        self.second_FCC = nn.Parameter(torch.empty(features, width, width))
        self.second_bias_FC = nn.Parameter(torch.zeros(features, width))
        self.gate_FCG = nn.Parameter(torch.empty(features, width, 2 * width))
        self.gate_bias_FG = nn.Parameter(torch.zeros(features, 2 * width))
        self.around_FC = nn.Parameter(torch.empty(features, width))
        self.around_bias_FC = nn.Parameter(torch.zeros(features, width))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        for weight in (self.first_FC, self.around_FC):
            nn.init.uniform_(weight, -1, 1)
        for weight in (self.second_FCC, self.gate_FCG):
            nn.init.uniform_(weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, x_MTF: Tensor) -> Tensor:
        """Return (F, M * T, C)."""
        x_FR1 = x_MTF.flatten(0, 1).T[..., None]
        hidden_FRC = F.elu(x_FR1 * self.first_FC[:, None] + self.first_bias_FC[:, None])
        hidden_FRC = torch.baddbmm(self.second_bias_FC[:, None], hidden_FRC, self.second_FCC)
        gated_FRG = torch.baddbmm(self.gate_bias_FG[:, None], self.dropout(hidden_FRC), self.gate_FCG)
        around_FRC = x_FR1 * self.around_FC[:, None] + self.around_bias_FC[:, None]
        return self.norm(around_FRC + F.glu(gated_FRG, dim=-1))


class VariableSelection(nn.Module):
    """The features of each node and day as one vector: the sum of their networks, weighted."""

    def __init__(self, features: int, width: int, dropout: float) -> None:
        super().__init__()
        self.networks = FeatureNetworks(features, width, dropout)
        self.weigh = GatedResidual(features, width, features, dropout)

    def forward(self, x_MTF: Tensor) -> Tensor:
        weight_FR1 = self.weights(x_MTF).flatten(0, 1).T[..., None]
        return (weight_FR1 * self.networks(x_MTF)).sum(0).unflatten(0, x_MTF.shape[:2])

    def weights(self, x_MTF: Tensor) -> Tensor:
        """Return the weight of each feature, (M, T, F); they add up to 1."""
        return self.weigh(x_MTF).softmax(dim=-1)


class FrequencyNormalisation(nn.Module):
    """Takes the K strongest frequencies out of the window of each feature."""

    def __init__(self, window: int, frequencies: int) -> None:
        super().__init__()
        self.frequencies = frequencies
        angle_TZ = 2 * math.pi / window * torch.arange(window)[:, None] * torch.arange(window // 2 + 1)
        twice_Z = torch.full((window // 2 + 1,), 2.0)
        twice_Z[0] = 1.0
        if window % 2 == 0:
            twice_Z[-1] = 1.0
        self.register_buffer("cosine_TZ", angle_TZ.cos(), persistent=False)
        self.register_buffer("sine_TZ", angle_TZ.sin(), persistent=False)
        self.register_buffer("back_Z", twice_Z / window, persistent=False)

    def forward(self, x_MTF: Tensor) -> tuple[Tensor, Tensor]:
        """Return the windows that are left, and those taken out, both (M, T, F)."""
        with torch.autocast(x_MTF.device.type, enabled=False):
            x_MFT = x_MTF.float().transpose(1, 2)
            real_MFZ, imaginary_MFZ = x_MFT @ self.cosine_TZ, x_MFT @ self.sine_TZ
            strength_MFZ = (real_MFZ.square() + imaginary_MFZ.square()) * self.back_Z
            strongest = strength_MFZ.topk(self.frequencies, dim=-1).indices
            kept_MFZ = torch.zeros_like(strength_MFZ).scatter_(-1, strongest, 1.0) * self.back_Z
            main_MFT = (real_MFZ * kept_MFZ) @ self.cosine_TZ.T + (imaginary_MFZ * kept_MFZ) @ self.sine_TZ.T
            main_MTF = main_MFT.transpose(1, 2)
            return x_MTF - main_MTF, main_MTF
