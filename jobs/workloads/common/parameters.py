"""Parameter groups that several workloads share."""

from typing import Any

from torch import nn


def decayed_matrices(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups of the trained parameters: matrices with weight decay, the others without it."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {"params": [(name, p) for name, p in named if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]  # an optimiser refuses a group without names
