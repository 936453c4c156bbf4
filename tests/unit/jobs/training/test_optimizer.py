"""The optimiser of a training that compiles nothing: the bits of torch's own, and no compiler in memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jobs.contract import AttemptSpec, Profile, RunPaths
from jobs.training.optimizer import AdamW, adamw
from jobs.training.switches import Switches
from tests.fakes.workloads.small_sets import small_plan

IMPLEMENTATIONS = ("loop", "foreach", "fused")
LOADED = """
import json, sys
from jobs.__main__ import main
code = main(json.loads(sys.argv[1]))
print(json.dumps([code, "torch" in sys.modules, "torch._dynamo" in sys.modules]))
"""


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


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_training_that_compiles_nothing_does_not_load_the_compiler(
    tmp_path: Path, *, deterministic: bool
) -> None:
    paths = RunPaths(tmp_path / "job", 1, 1)
    for leaf in (paths.attempt_dir, paths.lineage_dir):
        leaf.mkdir(parents=True)
    spec = AttemptSpec.model_validate(
        {
            "job_id": "j",
            "attempt": 1,
            "lineage": 1,
            "workload": {**small_plan("causal_lm", tmp_path / "data"), "steps": 4},
            "profile": {"micro_batch": 2, "deterministic": deterministic},
            "checkpoint": {"every_steps": 2},
        }
    )
    paths.spec.write_text(spec.model_dump_json())
    arguments = ["--root", str(paths.root), "--attempt", "1", "--lineage", "1"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, True, False]
