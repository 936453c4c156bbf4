"""Compilation is believed only when graphs are counted; that it works is shown in a container."""

from collections.abc import Iterator

import pytest
import torch

from jobs.compilation import compile_training
from jobs.device import prepare
from jobs.training import Training
from jobs.workloads import build
from tests.unit.jobs.conftest import JobDir


@pytest.fixture
def training(job: JobDir) -> Training:
    spec = job.spec(profile={"compile": True})
    return Training(spec, build(spec.workload, spec.seed), prepare(spec))


@pytest.fixture(autouse=True)
def _eager_again() -> Iterator[None]:
    yield
    torch.compiler.reset()
    torch.compiler.set_stance("default")


def test_a_compilation_that_fails_falls_back_and_says_why(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = training.workload.model
    monkeypatch.setattr(model, "compile", lambda: torch.nn.Module.compile(model, backend=broken))
    compile_training(training)
    effective = training.effective()
    assert not effective.compiled
    assert effective.fallbacks[0].startswith("compile not applied: backend='broken' raised")
    assert training.update(0)[0] > 0


def broken(_graph: object, _inputs: object) -> None:
    raise RuntimeError("no compiler here")


def test_a_compilation_that_makes_no_graph_is_not_called_one(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training.workload.model, "compile", lambda: None)
    compile_training(training)
    assert training.effective().fallbacks == (
        "compile not applied: torch.compile made no graph of this model; running eagerly",
    )
