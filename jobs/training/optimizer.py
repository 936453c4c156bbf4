"""AdamW that does not load torch's compiler if the training compiles nothing.

``torch.optim`` loads ``torch._dynamo`` when the first optimiser is made, because it excludes some
methods from tracing.  Loading it takes nearly as long as loading torch.  If nothing is compiled, the
same code runs here without the wrappers, and its results are bitwise identical.
"""

from collections.abc import Callable
from inspect import unwrap
from typing import Any, Final

import torch
from torch.optim import Optimizer

from jobs.training.switches import Switches

BETAS: Final = (0.9, 0.95)

_step: Final[Callable[..., Any]] = unwrap(torch.optim.Adam.step)


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` without compiler wrappers; class name and state are those of the original."""

    add_param_group = unwrap(Optimizer.add_param_group)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with the code of the original, without its graph breaks for the compiler."""
        loss: float | None = _step(self, closure)
        return loss


class BareOptimizer(Optimizer):
    """Parameter groups without an update, for a scheduler that needs an optimiser to change rates in."""

    add_param_group = unwrap(Optimizer.add_param_group)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update nothing."""
        return None if closure is None else closure()


def adamw(groups: list[dict[str, Any]], switches: Switches) -> torch.optim.AdamW:
    """Return AdamW in the implementation that the profile selects."""
    profile = switches.profile
    kind = AdamW if profile.compile == "off" else torch.optim.AdamW
    wanted = profile.optimizer
    return kind(groups, betas=BETAS, fused=wanted == "fused", foreach=wanted == "foreach")
