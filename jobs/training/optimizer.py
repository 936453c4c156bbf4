"""AdamW that leaves torch's compiler where it is, in a training that compiles nothing.

``torch.optim`` loads ``torch._dynamo`` when the first optimiser is made, to tell it to keep out of
some methods, and that takes nearly as long as to load torch itself.  Where nothing is compiled
nobody has to be told: the same code runs without the wrappers, and every bit is the same.
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
    """``torch.optim.AdamW`` where nothing is traced; its state is that of the original, under its name."""

    add_param_group = unwrap(Optimizer.add_param_group)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step, as the original does between the two words that it has for the compiler."""
        loss: float | None = _step(self, closure)
        return loss


def adamw(groups: list[dict[str, Any]], switches: Switches) -> torch.optim.AdamW:
    """Return an optimiser in the implementation that the profile wants."""
    profile = switches.profile
    kind = AdamW if profile.compile == "off" else torch.optim.AdamW
    wanted = profile.optimizer
    return kind(groups, betas=BETAS, fused=wanted == "fused", foreach=wanted == "foreach")
