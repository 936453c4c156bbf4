"""Parameter groups that several workloads share."""

from typing import Any

from torch import nn


def decayed_matrices(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices with weight decay, biases and norms without it."""
    named = list(model.named_parameters())
    return [
        {"params": [(name, p) for name, p in named if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
