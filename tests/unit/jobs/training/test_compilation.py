"""Compilation is believed only when graphs are counted; that it works is shown in a container."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from jobs.training.step import Training
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


@pytest.fixture
def training(job: JobDir) -> Training:
    return make(job, profile={"compile": True})


@pytest.fixture(autouse=True)
def _eager_again() -> Iterator[None]:
    yield
    torch.compiler.reset()
    torch.compiler.set_stance("default")


def compile_now(training: Training, model: nn.Module) -> None:
    from jobs.training.compilation import compile_model

    compile_model(model, training.switches, training.device, training.rehearse)


def test_a_compilation_that_makes_no_graph_is_not_called_one(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = training.workload.model
    monkeypatch.setattr(model, "compile", lambda **_: None)
    compile_now(training, model)
    assert training.effective().fallbacks == (
        "compile default: using off: torch.compile made no graph of this model",
    )


def test_mode_shapes_and_whole_graph_are_those_of_the_profile(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = {"compile": "reduce-overhead", "compile_dynamic": False, "compile_fullgraph": True}
    training = make(job, profile=profile)
    model = training.workload.model
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(model, "compile", lambda **options: asked.append(options))
    compile_now(training, model)
    assert asked == [{"mode": "reduce-overhead", "dynamic": False, "fullgraph": True}]


def test_a_cuda_graph_that_the_compiler_skipped_is_told(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    from jobs.training.compilation import compile_model

    training = make(job, profile={"compile": "reduce-overhead"})
    monkeypatch.setattr(training.workload.model, "compile", lambda **_: None)

    def rehearse() -> None:
        counters["stats"]["unique_graphs"] = 2
        counters["inductor"]["cudagraph_skips"] = 1

    compile_model(training.workload.model, training.switches, training.device, rehearse)
    told = training.switches.report()["compile"]
    assert (told.verified, told.note) == (False, "2 graph(s), 1 of them without CUDA graphs")
