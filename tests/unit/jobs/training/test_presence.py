"""Visible effect of each switch on a training, where its own subject has no test of it.

``python -m scripts.mutate_switches`` makes each switch a no-op, and these tests fail then.  A test that a
switch changes no bits would stay green.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from jobs.checkpoint.saver import Checkpoints
from jobs.training import feed
from jobs.training.batches import Batch
from jobs.training.compilation import compile_model
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

Arguments = dict[str, Any]


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> list[Arguments]:
    """Return the arguments of each loader that is made; it makes its batches in this process."""
    made: list[Arguments] = []

    class InProcess(DataLoader[Batch]):
        def __init__(self, numbered: Any, **options: Any) -> None:
            made.append(options)
            super().__init__(numbered, batch_size=None, sampler=options["sampler"])

    monkeypatch.setattr(feed, "DataLoader", InProcess)
    return made


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_are_processes_of_the_loader(
    job: JobDir, loaders: list[Arguments], workers: int
) -> None:
    make(job, profile={"loader_workers": workers}).feed.begin(0)
    assert [each["num_workers"] for each in loaders] == [workers]


@pytest.mark.parametrize("ahead", [1, 5])
def test_loader_prefetch_is_how_far_each_of_them_is_ahead(
    job: JobDir, loaders: list[Arguments], ahead: int
) -> None:
    make(job, profile={"loader_workers": 1, "loader_prefetch": ahead}).feed.begin(0)
    assert [each["prefetch_factor"] for each in loaders] == [ahead]


@pytest.mark.parametrize("kept", [True, False])
def test_loader_persistent_keeps_the_loader_of_evaluations(
    job: JobDir, loaders: list[Arguments], *, kept: bool
) -> None:
    training = make(job, profile={"loader_workers": 1, "loader_persistent": kept})
    for _ in range(2):
        training.evaluate(StopRequests())
    assert [each["persistent_workers"] for each in loaders] == ([True] if kept else [False, False])


def passes(training: Training, act: Callable[[], object]) -> list[int]:
    """Return the rows of each forward pass of the model."""
    rows: list[int] = []
    hook = training.workload.model.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    act()
    hook.remove()
    return rows


def test_micro_batch_is_the_rows_of_a_forward_pass(job: JobDir) -> None:
    for rows, seen in ((1, [1, 1, 1]), (2, [2, 1]), (None, [3])):
        training = make(job, profile={"micro_batch": rows})
        assert passes(training, partial(training.update, 0)) == seen


def test_eval_batch_is_the_rows_of_a_pass_of_an_evaluation(job: JobDir) -> None:
    for rows, seen in ((1, [1] * 6), (2, [2, 1] * 2), (None, [3, 3])):
        training = make(job, profile={"eval_batch": rows})
        assert passes(training, partial(training.evaluate, StopRequests())) == seen


@pytest.mark.parametrize(
    ("optimizer", "flags"), [("fused", (True, False)), ("foreach", (False, True)), ("loop", (False, False))]
)
def test_the_optimizer_is_the_implementation_that_is_asked_for(
    job: JobDir, optimizer: str, flags: tuple[bool, bool]
) -> None:
    defaults = make(job, profile={"optimizer": optimizer})._optimizer.defaults
    assert (defaults["fused"], defaults["foreach"]) == flags


@pytest.mark.parametrize("recomputed", [True, False])
def test_activation_checkpointing_computes_each_block_again(job: JobDir, *, recomputed: bool) -> None:
    training = make(job, profile={"activation_checkpointing": recomputed})
    calls: list[int] = []
    block: Any = training.workload.model.blocks[0]
    block.feed_in.register_forward_hook(lambda *_: calls.append(1))
    training.update(0)
    assert len(calls) == (2 if recomputed else 1)


@pytest.mark.parametrize("beside", [True, False])
def test_async_save_goes_on_while_a_checkpoint_is_written(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    written: list[bool] = []
    save = Checkpoints.save

    def noting(checkpoints: Checkpoints, step: int, state: dict[str, Any]) -> None:
        save(checkpoints, step, state)
        written.append(checkpoints._writing is None)

    monkeypatch.setattr(Checkpoints, "save", noting)
    assert job.train(profile={"async_save": beside}) == 0
    assert set(written) == {not beside}


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_compile_dynamic_is_what_the_compiler_is_told(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, *, dynamic: bool | None
) -> None:
    training = make(job, profile={"compile": "default", "compile_dynamic": dynamic})
    model, asked = training.workload.model, list[Arguments]()
    monkeypatch.setattr(model, "compile", lambda **options: asked.append(options))
    compile_model(model, training.switches, training.device, training.rehearse)
    torch.compiler.set_stance("default")
    assert [each["dynamic"] for each in asked] == [dynamic]


@pytest.mark.parametrize("dry", [True, False])
def test_dry_run_rehearses_before_the_first_step(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, *, dry: bool
) -> None:
    rehearsed: list[bool] = []
    rehearse = Training.rehearse

    def noting(training: Training) -> None:
        rehearsed.append(True)
        rehearse(training)

    monkeypatch.setattr(Training, "rehearse", noting)
    assert job.train(profile={"dry_run": dry}, workload={"steps": 1}) == 0
    assert rehearsed == [True] * dry


@pytest.mark.parametrize("every", [1, 3])
def test_host_checks_every_is_how_often_the_cpu_reads_the_loss(job: JobDir, every: int) -> None:
    training = make(job, profile={"host_checks_every": every}, workload={"log_every": 100})
    read = [training.update(step)[0] is not None for step in range(6)]
    assert read == [(step + 1) % every == 0 for step in range(6)]


@pytest.mark.parametrize("watched", [True, False])
def test_anomaly_detection_is_on_in_a_step(job: JobDir, *, watched: bool) -> None:
    training = make(job, profile={"anomaly_detection": watched})
    seen: list[bool] = []
    model = training.workload.model
    model.register_forward_hook(lambda *_: seen.append(torch.is_anomaly_enabled()))
    training.update(0)
    assert set(seen) == {watched}
