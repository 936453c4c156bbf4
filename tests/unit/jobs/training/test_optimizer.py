"""The optimiser of a training that compiles nothing: the bits of torch's own, and no compiler in memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jobs.contract import Profile
from jobs.training.optimizer import AdamW, adamw
from jobs.training.switches import Switches

IMPLEMENTATIONS = ("loop", "foreach", "fused")


def begun(optimizer: str, compiled: str = "off") -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(3)
    model = nn.Linear(5, 4)
    groups: list[dict[str, Any]] = [
        {"params": [model.weight], "weight_decay": 0.1, "param_names": ["weight"]},
        {"params": [model.bias], "weight_decay": 0.0, "param_names": ["bias"]},
    ]
    return model, adamw(
        groups, Switches(Profile.model_validate({"optimizer": optimizer, "compile": compiled}))
    )


def steps(model: nn.Module, optimizer: torch.optim.AdamW, first: int, last: int) -> None:
    for step in range(first, last):
        rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad(set_to_none=True)
        model(rows).square().mean().backward()
        optimizer.step()


def bits(model: nn.Module, optimizer: torch.optim.AdamW) -> list[Tensor]:
    state = optimizer.state_dict()["state"]
    return [*model.parameters(), *(state[index][name] for index in state for name in sorted(state[index]))]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_its_steps_are_those_of_the_original_bit_for_bit(implementation: str) -> None:
    plain, original = begun(implementation), begun(implementation, "default")
    assert type(original[1]) is torch.optim.AdamW
    assert type(plain[1]) is AdamW
    assert type(plain[1]).__name__ == type(original[1]).__name__  # it is part of a checkpoint's signature
    for each in (plain, original):
        steps(*each, 0, 5)
    for ours, theirs in zip(bits(*plain), bits(*original), strict=True):
        assert torch.equal(ours, theirs)


def test_either_goes_on_from_the_state_of_the_other() -> None:
    plain, original = begun("loop"), begun("loop", "default")
    whole = begun("loop")
    steps(*whole, 0, 6)
    steps(*plain, 0, 3)
    original[0].load_state_dict(plain[0].state_dict())
    original[1].load_state_dict(plain[1].state_dict())
    steps(*original, 3, 6)
    for ours, theirs in zip(bits(*whole), bits(*original), strict=True):
        assert torch.equal(ours, theirs)


def test_a_step_leaves_gradients_switched_on_and_may_evaluate_the_loss_itself() -> None:
    model, optimizer = begun("loop")

    def loss() -> float:
        assert torch.is_grad_enabled()
        found = model(torch.ones(1, 5)).square().mean()
        found.backward()
        return float(found.detach())

    assert optimizer.step(loss) == pytest.approx(loss(), rel=0.5)
    assert torch.is_grad_enabled()
