import ast
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gpu_job_runner import attach
from gpu_job_runner.attach import Attempt, Told
from jobs import contract
from jobs.contract import Cause, ExitCode, Manifest, Result, RunPaths, Status, verify
from jobs.training import randomness
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.patience import patience

STEPS = 12


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    return paths


def told(paths: RunPaths, **fields: object) -> Told:
    known = {"job_id": "j-1", "seed": 7, "save_every_steps": 4}
    return Told(paths.lineage_dir, paths.attempt_dir, **{**known, **fields})  # type: ignore[arg-type]


class Training:
    """A training whose state is what it drew; it can be interrupted after a step."""

    def __init__(self, said: Told, interrupt: Callable[[int, Attempt], None] | None = None) -> None:
        self.drawn: list[float] = []
        self.job = Attempt(said, self.save, self.load)
        self._interrupt = interrupt

    def save(self, directory: Path) -> None:
        (directory / "state.json").write_text(json.dumps(self.drawn))

    def load(self, directory: Path) -> None:
        self.drawn = json.loads((directory / "state.json").read_text())

    def go(self) -> list[float]:
        with self.job as job:
            for step in job.steps(STEPS):
                self.drawn.append(random.random())  # noqa: S311
                job.report(loss=self.drawn[-1], items=2)
                if self._interrupt:
                    self._interrupt(step, job)
        return self.drawn


class Killed(BaseException):
    """Stands for SIGKILL where a test wants to go on living."""


def kill_at(step: int) -> Callable[[int, Attempt], None]:
    def interrupt(now: int, _: Attempt) -> None:
        if now == step:
            raise Killed

    return interrupt


def send_at(step: int, number: signal.Signals) -> Callable[[int, Attempt], None]:
    def interrupt(now: int, _: Attempt) -> None:
        if now == step:
            os.kill(os.getpid(), number)

    return interrupt


def steps_in(directory: Path) -> list[int]:
    return sorted(step for step, _ in contract.checkpoints(directory))


def status(paths: RunPaths) -> Status:
    return Status.model_validate_json(paths.status.read_bytes())


def result(paths: RunPaths) -> Result:
    return Result.model_validate_json(paths.result.read_bytes())


@pytest.fixture
def never_killed(tmp_path: Path) -> list[float]:
    return Training(Told(tmp_path / "elsewhere", seed=7)).go()


@pytest.mark.parametrize("killed_at", range(STEPS))
def test_a_killed_training_ends_as_if_it_had_never_been_killed(
    paths: RunPaths, never_killed: list[float], killed_at: int
) -> None:
    with pytest.raises(Killed):
        Training(told(paths), kill_at(killed_at)).go()
    assert Training(told(paths)).go() == never_killed
    assert result(paths).resumed_from == (killed_at // 4 * 4 or None)


def test_the_runner_accepts_the_checkpoints(paths: RunPaths) -> None:
    Training(told(paths, revision=3)).go()
    assert steps_in(paths.lineage_dir) == [4, 8, 12]
    manifest = verify(paths.lineage_dir / "step-00000008")
    expected = {"job_id": "j-1", "step": 8, "lineage": 1, "attempt": 1, "revision": 3, "parent_step": 4}
    assert manifest.model_dump(include=set(expected)) == expected


def test_a_manifest_has_every_field_that_the_contract_requires(paths: RunPaths) -> None:
    Training(told(paths)).go()
    written = json.loads((paths.lineage_dir / "step-00000012" / "manifest.json").read_text())
    assert {name for name, field in Manifest.model_fields.items() if field.is_required()} <= written.keys()
    assert written.keys() <= Manifest.model_fields.keys()


def test_the_reports_are_those_of_the_contract(paths: RunPaths) -> None:
    Training(told(paths)).go()
    assert (status(paths).step, status(paths).total_steps, status(paths).checkpoint_step) == (12, 12, 12)
    assert result(paths).cause is Cause.COMPLETED
    lines = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert set(lines[0]) == {"time", "step", "loss"}
    for name, model in (("status.json", Status), ("result.json", Result)):
        assert json.loads((paths.attempt_dir / name).read_text()).keys() <= model.model_fields.keys()


def test_items_become_a_rate(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr("gpu_job_runner.attach.time.monotonic", lambda: next(clock))
    job = Attempt(told(paths))
    job.end_step(1, items=30)
    assert status(paths).items_per_s == pytest.approx(30, rel=0.95)


def test_numbers_that_are_none_are_null(paths: RunPaths) -> None:
    Attempt(told(paths)).end_step(1, loss=float("nan"))
    assert json.loads(paths.metrics.read_text())["loss"] is None


def test_without_a_runner_it_saves_below_a_directory_and_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNNER_CHECKPOINT_DIR", raising=False)
    with attach.attach(lambda d: (d / "x").write_text("x")) as job:
        assert list(job.steps(2)) == [0, 1]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != ".lock") == [
        "checkpoints", "manifest.json", "step-00000002", "x",
    ]  # fmt: skip


def test_what_the_runner_says_wins(paths: RunPaths) -> None:
    environ = {
        "RUNNER_CHECKPOINT_DIR": str(paths.lineage_dir),
        "RUNNER_ATTEMPT_DIR": str(paths.attempt_dir),
        "RUNNER_JOB_ID": "j-1",
        "RUNNER_ATTEMPT": "2",
        "RUNNER_LINEAGE": "3",
        "RUNNER_STEPS": "100",
        "RUNNER_SAVE_EVERY_S": "2.5",
        "RUNNER_KEEP": "5",
    }
    assert attach.told(environ, Told(Path("local"), save_every_steps=9)) == Told(
        paths.lineage_dir, paths.attempt_dir, "j-1", 1, 2, 3, steps=100, save_every_s=2.5, keep=5
    )


def test_the_job_file_may_say_how_many_steps(paths: RunPaths) -> None:
    assert list(Attempt(told(paths, steps=3)).steps()) == [0, 1, 2]
    with pytest.raises(ValueError, match="how many steps"):
        next(Attempt(told(paths)).steps())


# --- Resuming


def torn(paths: RunPaths, step: int) -> None:
    (paths.lineage_dir / f"step-{step:08d}" / "state.json").write_text("[")


def test_a_torn_checkpoint_is_skipped_reported_and_set_aside(
    paths: RunPaths, never_killed: list[float]
) -> None:
    with pytest.raises(Killed):
        Training(told(paths), kill_at(9)).go()
    torn(paths, 8)
    assert Training(told(paths)).go() == never_killed
    assert result(paths).resumed_from == 4
    assert [each.name for each in result(paths).rejected] == ["step-00000008"]
    assert len(list(paths.lineage_dir.glob("bad-step-00000008-*"))) == 1


@pytest.mark.parametrize("damage", ["torn", "no manifest", "another step", "newer contract", "no JSON"])
def test_with_checkpoints_and_none_valid_it_leaves_with_99_and_changes_nothing(
    paths: RunPaths, damage: str
) -> None:
    Training(told(paths, save_every_steps=None)).go()
    manifest = paths.lineage_dir / "step-00000012" / "manifest.json"
    known = json.loads(manifest.read_text())
    match damage:
        case "torn":
            torn(paths, 12)
        case "no manifest":
            manifest.unlink()
        case "no JSON":
            manifest.write_text("{")
        case "another step":
            manifest.write_text(json.dumps({**known, "step": 11}))
        case _:
            manifest.write_text(json.dumps({**known, "contract_version": 99}))
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            Training(told(paths)).go()
        assert left.value.code == ExitCode.NO_VALID_CHECKPOINT
        assert result(paths).cause is Cause.NO_VALID_CHECKPOINT
        assert steps_in(paths.lineage_dir) == [12]


def test_checkpoints_that_were_all_rejected_before_are_not_forgotten(paths: RunPaths) -> None:
    Training(told(paths, save_every_steps=None)).go()
    (paths.lineage_dir / "step-00000012").rename(paths.lineage_dir / "bad-step-00000012-0")
    with pytest.raises(SystemExit, match="99"):
        Training(told(paths)).go()


def test_a_given_step_is_resumed_and_what_is_newer_never_read_again(
    paths: RunPaths, never_killed: list[float]
) -> None:
    Training(told(paths)).go()
    (paths.lineage_dir / "final").mkdir()
    with pytest.raises(Killed):
        Training(told(paths, resume_step=4), kill_at(5)).go()
    assert steps_in(paths.lineage_dir) == [4]
    assert len(list(paths.lineage_dir.glob("superseded-*"))) == 3
    assert Training(told(paths)).go() == never_killed


def test_a_given_step_that_is_not_there_does_not_fit(paths: RunPaths) -> None:
    Training(told(paths)).go()
    with pytest.raises(SystemExit, match="78"):
        Training(told(paths, resume_step=5)).go()
    assert steps_in(paths.lineage_dir) == [4, 8, 12]


def test_a_finished_training_is_only_finished_again(paths: RunPaths) -> None:
    Training(told(paths)).go()
    again = Training(told(paths), kill_at(0))
    assert len(again.go()) == STEPS


def test_restoring_without_a_loader_only_says_where_to_begin(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(told(paths)).go()
    assert Attempt(told(paths)).restore() == 12
    assert "nothing loads" in capsys.readouterr().err


# --- Saving


def test_the_oldest_are_deleted_but_milestones_stay(paths: RunPaths) -> None:
    Training(told(paths, save_every_steps=1, keep=2, milestone_every=5)).go()
    assert steps_in(paths.lineage_dir) == [5, 10, 11, 12]
    assert not list(paths.lineage_dir.glob(".t*"))


def test_never_fewer_than_two_are_kept(paths: RunPaths) -> None:
    Training(told(paths, save_every_steps=1, keep=1)).go()
    assert steps_in(paths.lineage_dir) == [11, 12]


def test_bad_ones_are_kept_but_not_many(paths: RunPaths) -> None:
    Training(told(paths)).go()
    for number in range(5):
        (paths.lineage_dir / f"bad-step-00000001-{number}").mkdir()
    Training(told(paths)).go()
    assert len(list(paths.lineage_dir.glob("bad-*"))) == attach.BAD_KEPT


def test_what_a_kill_left_is_swept(paths: RunPaths) -> None:
    for name in (".tmp-4-aa", ".trash-3-bb"):
        (paths.lineage_dir / name).mkdir(parents=True)
    Training(told(paths)).go()
    assert not list(paths.lineage_dir.glob(".t*"))


def test_the_same_step_is_not_saved_twice(paths: RunPaths) -> None:
    job = Attempt(told(paths))
    job.step = 3
    job.save(lambda directory: (directory / "x").write_text("first"))
    job.save(lambda directory: (directory / "x").write_text("second"))
    assert (paths.lineage_dir / "step-00000003" / "x").read_text() == "first"


def test_a_torn_checkpoint_of_the_same_step_is_replaced(paths: RunPaths) -> None:
    job = Attempt(told(paths))
    job.step = 3
    for text in ("first", "second"):
        job.save(lambda directory, text=text: (directory / "x").write_text(text))  # type: ignore[misc]
        shutil.rmtree(job.lineage.place(3)) if text == "first" else None
        (paths.lineage_dir / "step-00000003").mkdir(exist_ok=True)
    assert verify(job.lineage.place(3)).step == 3
    assert len(list(paths.lineage_dir.glob("bad-step-00000003-*"))) == 1


@pytest.mark.parametrize("content", ["directory", "link", "nothing"])
def test_a_checkpoint_holds_plain_files(paths: RunPaths, content: str) -> None:
    def write(directory: Path) -> None:
        if content == "directory":
            (directory / "sub").mkdir()
        if content == "link":
            (directory / "link").symlink_to("/etc/hostname")

    with pytest.raises(ValueError, match="plain files"):
        Attempt(told(paths)).save(write)
    assert [path.name for path in paths.lineage_dir.iterdir()] == [".lock"]


def fills_the_disk(_: Path) -> None:
    raise RuntimeError("hidden") from OSError(errno.ENOSPC, "No space left on device")


def disk_full(_: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_end_a_training_that_goes_on(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Attempt(told(paths), save=disk_full)
    job.end_step(4)
    job.save()
    assert "skipped" in capsys.readouterr().err
    assert not list(paths.lineage_dir.glob(".tmp*"))


@pytest.mark.parametrize("save", [disk_full, fills_the_disk])
def test_a_full_disk_at_the_last_save_is_told(paths: RunPaths, save: Callable[[Path], None]) -> None:
    def whole() -> None:
        with Attempt(told(paths, save_every_steps=None), save) as job:
            list(job.steps(1))
            raise_from_finish(job)

    def raise_from_finish(job: Attempt) -> None:
        job.finish()

    with pytest.raises((OSError, RuntimeError)):
        whole()
    assert result(paths).cause is Cause.DISK_FULL


def test_a_full_disk_at_the_save_of_the_last_step_is_told(paths: RunPaths) -> None:
    def whole() -> None:
        with Attempt(told(paths, save_every_steps=None), disk_full) as job:
            list(job.steps(1))

    with pytest.raises(OSError, match="No space left"):
        whole()
    assert result(paths).cause is Cause.DISK_FULL


@pytest.mark.parametrize(("free", "cause"), [(4096, Cause.DISK_FULL), (1 << 30, Cause.EXCEPTION)])
def test_an_error_of_a_library_is_that_of_a_full_disk_where_none_is_free(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, free: int, cause: Cause
) -> None:
    def write(_: Path) -> None:
        raise RuntimeError("unexpected pos 832 vs 726")

    def whole() -> None:
        with Attempt(told(paths, save_every_steps=None), write) as job:
            list(job.steps(1))

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises((OSError, RuntimeError), match="unexpected pos"):
        whole()
    assert result(paths).cause is cause


def test_another_error_while_saving_is_not_forgiven(paths: RunPaths) -> None:
    def write(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        Attempt(told(paths)).save(write)


def restores_only(training: Training) -> None:
    training.job.restore()


def saves_only(training: Training) -> None:
    with training.job as job:
        job.end_step(1)
        job.save()


@pytest.mark.parametrize("begin", [Training.go, restores_only, saves_only])
def test_a_lineage_that_another_process_holds_is_left_alone_with_76(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Training], object]
) -> None:
    monkeypatch.setattr(attach, "LOCK_WAIT_S", 0.0)
    paths.lineage_dir.mkdir(parents=True)
    with (paths.lineage_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match=str(ExitCode.LINEAGE_BUSY.value)):
            begin(Training(told(paths)))
    assert (result(paths).cause, list(paths.lineage_dir.glob("step-*"))) == (Cause.LINEAGE_BUSY, [])
    assert "locked by another process; stop that one first" in result(paths).message


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_ends_no_training(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, never_killed: list[float], number: int
) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert Training(told(paths)).go() == never_killed


def test_the_lock_is_held_by_an_attempt_and_free_when_it_has_ended(paths: RunPaths) -> None:
    def free() -> bool:
        with (paths.lineage_dir / ".lock").open("w") as lock:
            return attach._locked(lock.fileno())

    seen: list[bool] = []
    Training(told(paths), lambda *_: seen.append(free())).go()
    assert seen == [False] * STEPS
    assert free()


def test_the_finished_model_is_published_before_the_end(paths: RunPaths) -> None:
    job = Attempt(told(paths), lambda directory: (directory / "x").write_text("x"))
    list(job.steps(2))
    job.finish(
        lambda directory: (directory / "weights").write_text("w"), {"accuracy": 0.5, "broken": float("inf")}
    )
    assert verify(paths.final_dir).step == 2
    assert result(paths).metrics == {"accuracy": 0.5}


def test_only_the_first_of_several_processes_writes(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, never_killed: list[float]
) -> None:
    with pytest.raises(Killed):
        Training(told(paths), kill_at(9)).go()
    before = sorted(paths.root.rglob("*"))
    monkeypatch.setenv("RANK", "1")
    second = Training(told(paths))
    assert second.go() == never_killed
    second.job.finish(disk_full)
    assert sorted(paths.root.rglob("*")) == before


# --- Stopping


def test_a_stop_finishes_the_step_saves_and_leaves_with_75(
    paths: RunPaths, never_killed: list[float]
) -> None:
    with pytest.raises(SystemExit) as left:
        Training(told(paths), send_at(5, signal.SIGTERM)).go()
    assert left.value.code == ExitCode.STOPPED
    assert (result(paths).cause, result(paths).step) == (Cause.STOPPED, 6)
    assert Training(told(paths)).go() == never_killed


def test_a_pause_saves_and_leaves_until_the_training_is_told_to_go_on_from_there(
    paths: RunPaths, never_killed: list[float]
) -> None:
    for resume_step in (None, None, 5):  # it pauses again at once, unless it was told to resume from there
        with pytest.raises(SystemExit) as left:
            Training(told(paths, pauses=(5, 9), resume_step=resume_step)).go()
        assert left.value.code == ExitCode.STOPPED
        assert (result(paths).cause, result(paths).step) == (Cause.STOPPED, 9 if resume_step else 5)
    assert Training(told(paths, pauses=(5, 9), resume_step=9)).go() == never_killed


def test_a_stop_in_the_last_step_completes(paths: RunPaths, never_killed: list[float]) -> None:
    assert Training(told(paths), send_at(STEPS - 1, signal.SIGTERM)).go() == never_killed
    assert result(paths).cause is Cause.COMPLETED


def test_a_save_that_is_asked_for_is_made_and_the_training_goes_on(
    paths: RunPaths, never_killed: list[float]
) -> None:
    training = Training(told(paths, save_every_steps=None), send_at(6, signal.SIGUSR1))
    assert training.go() == never_killed
    assert steps_in(paths.lineage_dir) == [7, 12]


def test_a_save_is_due_after_a_time(paths: RunPaths) -> None:
    job = Attempt(told(paths, save_every_steps=None, save_every_s=0.0))
    assert job.wants_save()
    assert not Attempt(told(paths, save_every_steps=None, save_every_s=1e9)).wants_save()


def test_what_a_save_costs_settles_when_the_next_one_is_due(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(attach, "time", SimpleNamespace(monotonic=clock.monotonic, time=time.time))

    def save(directory: Path) -> None:
        clock.forward(0.25)
        (directory / "state").write_text("x")

    job = Attempt(told(paths, save_every_steps=None, save_every_s=0.0, mean_between_s=1e4), save)
    job.end_step(1, items=4)
    assert job.wants_save()
    job.save()
    assert not job.wants_save()
    job.end_step(2, items=4)
    job.finish()
    known = json.loads(paths.status.read_text())
    assert known["save_stall_s"] == 0.25
    assert known["save_every_s"] == pytest.approx((2 * 0.25 * 1e4) ** 0.5, rel=0.1)
    assert known["items"] == 8


def test_an_interval_that_was_told_is_kept_whatever_a_save_costs(paths: RunPaths) -> None:
    job = Attempt(
        told(paths, save_every_steps=None, save_every_s=0.0), lambda where: (where / "s").write_text("x")
    )
    job.end_step(1)
    job.save()
    assert job.wants_save()
    assert "save_every_s" not in job.reports.known


def test_the_second_interrupt_from_the_keyboard_is_obeyed_at_once(paths: RunPaths) -> None:
    job = Attempt(told(paths))
    os.kill(os.getpid(), signal.SIGINT)
    assert job.stopping
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_forked_process_outlives_the_first_interrupt_from_the_keyboard_and_no_other_signal(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    job = Attempt(told(paths))
    job._pid = -1  # as a copy in a forked process sees it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        job._heed(number, None)
    assert sent == [signal.SIGTERM, signal.SIGINT]


# --- Leaving


def test_an_error_is_told_and_leaves_as_it_came(paths: RunPaths) -> None:
    def whole() -> None:
        with Attempt(told(paths)):
            raise LookupError("no such\nthing")

    with pytest.raises(LookupError):
        whole()
    assert (result(paths).cause, result(paths).message) == (Cause.EXCEPTION, "LookupError: no such thing")


def test_a_device_without_memory_leaves_with_98(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    def whole() -> None:
        with Attempt(told(paths)):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SystemExit, match="98"):
        whole()
    assert result(paths).cause is Cause.DEVICE_OUT_OF_MEMORY
    assert "Traceback" in capsys.readouterr().err


def test_whoever_leaves_says_why(paths: RunPaths) -> None:
    def whole() -> None:
        with Attempt(told(paths)) as job:
            job.leave(attach.NON_FINITE, "loss is nan at step 3")

    with pytest.raises(SystemExit, match="97"):
        whole()
    assert (result(paths).cause, result(paths).message) == (Cause.NON_FINITE, "loss is nan at step 3")


def test_reports_that_cannot_be_written_end_nothing(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(paths.attempt_dir)
    assert len(Training(told(paths)).go()) == STEPS
    assert "cannot be written" in capsys.readouterr().err


# --- Randomness


def test_draws_are_a_function_of_seed_and_step(paths: RunPaths) -> None:
    job = Attempt(told(paths))

    def draws(*at: int | str) -> tuple[float, ...]:
        job.seed(*at)  # type: ignore[arg-type]
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: S311, NPY002

    first = draws(3)
    assert draws(4) != first
    assert draws(3, "augmentation") != first
    assert draws(3) == first


def test_seeds_are_derived_as_the_trainer_derives_them() -> None:
    assert attach.derive(7, "order", 3) == randomness.derive(7, "order", 3)


def test_every_epoch_shows_every_row_once_and_in_another_order(paths: RunPaths) -> None:
    job = Attempt(told(paths))
    batches = job.order(8, length=10, size=3)
    first, second = (list(chain(*batches[at : at + 3])) for at in (0, 3))
    assert len(set(first)) == len(set(second)) == 9
    assert first != second
    job.step = 5
    assert job.order(8, length=10, size=3) == batches[5:]


@pytest.mark.parametrize(("length", "size"), [(10, 0), (10, 11), (0, 1)])
def test_a_batch_that_the_data_cannot_fill_is_refused(paths: RunPaths, length: int, size: int) -> None:
    job = Attempt(told(paths))
    for ask in (job.rows, job.order):
        with pytest.raises(ValueError, match=rf"a batch of {size} of {length} rows; give it at least one"):
            ask(8, length, size)


@pytest.mark.parametrize("killed_at", [None, 5])
def test_a_loader_goes_on_where_the_training_was(paths: RunPaths, killed_at: int | None) -> None:
    def shown(interrupt: Callable[[int, Attempt], None] | None = None) -> list[list[int]]:
        seen: list[list[int]] = []
        with Attempt(told(paths), lambda d: (d / "x").write_text("x"), lambda _: None) as job:
            job.restore()
            loader = DataLoader(range(20), batch_sampler=job.order(STEPS, 20, 6))
            for step, batch in zip(job.steps(STEPS), loader, strict=False):
                seen.append(batch.tolist())
                if interrupt:
                    interrupt(step, job)
        return seen

    order = Attempt(told(paths)).order(STEPS, 20, 6)
    if killed_at is not None:
        with pytest.raises(Killed):
            shown(kill_at(killed_at))
    assert shown() == order[0 if killed_at is None else 4 :]
    assert steps_in(paths.lineage_dir)[-1] == STEPS


# --- One file that stands alone


def test_the_words_of_the_contract_are_the_same() -> None:
    names = ("STOPPED", "INVALID_SPEC", "DO_NOT_RESTART", "NON_FINITE", "LINEAGE_BUSY")
    codes = {name: getattr(attach, name) for name in names}
    assert codes == {name: ExitCode[name] for name in codes}
    assert ExitCode.DEVICE_OUT_OF_MEMORY == attach.OUT_OF_MEMORY
    assert ExitCode.NO_VALID_CHECKPOINT == attach.NO_VALID_CHECKPOINT
    assert (attach.MANIFEST, attach.CONTRACT_VERSION) == (contract.MANIFEST, contract.CONTRACT_VERSION)
    trainers_own = {Cause.SUPERSEDED, Cause.REPLICAS_DIFFER}
    assert {*attach.CAUSES.values(), "completed", "exception", "disk_full"} == {*Cause} - trainers_own


def test_it_is_written_in_the_python_of_old_scripts() -> None:
    tree = ast.parse(Path(attach.__file__).read_text(), feature_version=(3, 8))  # refuses what is newer
    used = {getattr(node, name, None) for node in ast.walk(tree) for name in ("attr", "arg", "id")}
    assert not used & {"removeprefix", "removesuffix", "is_relative_to", "readlink", "strict", "slots", "UTC"}


def draws(script: str, directory: Path, **more: str) -> str:
    environ = {
        "PYTHONPATH": str(Path(attach.__file__).parents[1]),
        "PATH": os.environ["PATH"],
        "RUNNER_CHECKPOINT_DIR": str(directory),
        **more,
    }
    return subprocess.check_output(
        [sys.executable, "-c", script], env=environ, cwd=directory, text=True, timeout=patience()
    )


# --- attach_states


@pytest.fixture
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which scripts run by hand, and save below ``checkpoints``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attach, "_ATTEMPTS", {})
    return tmp_path


def train(steps: int) -> torch.Tensor:
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with attach.attach_states(model=model, optimizer=optimizer) as job:
        for _ in job.steps(steps):
            optimizer.zero_grad()
            model(torch.rand(4, 2)).sum().backward()
            optimizer.step()
    return model.weight.detach().clone()


def test_states_of_torch_are_saved_and_loaded_by_their_names(
    by_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(6)
    shutil.rmtree(by_hand / "checkpoints")
    monkeypatch.setattr(attach, "_ATTEMPTS", {})
    train(3)
    monkeypatch.setattr(attach, "_ATTEMPTS", {})
    assert torch.equal(train(6), whole)
    saved = torch.load(by_hand / "checkpoints/step-00000006/state.pt", weights_only=True)
    assert sorted(saved) == ["model", "optimizer"]


@pytest.mark.usefixtures("full_disk")
def test_states_of_torch_are_skipped_on_a_full_disk_and_the_training_goes_on(
    by_hand: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = attach.attach_states(model=torch.nn.Linear(100, 100))
    job.end_step(4)
    job.save()
    assert "checkpoint of step 4 skipped" in capsys.readouterr().err
    assert [path.name for path in (by_hand / "checkpoints").iterdir()] == [".lock"]


def test_what_has_no_state_is_refused_by_its_name(by_hand: Path) -> None:
    with pytest.raises(TypeError, match=r"rate: float has no state_dict and load_state_dict; use attach\(\)"):
        attach.attach_states(rate=0.1)
    assert not list(by_hand.iterdir())


def test_a_program_says_that_it_saves_when_asked_once_its_loop_looks_for_requests(paths: RunPaths) -> None:
    def says() -> bool | None:
        return Status.model_validate_json(paths.status.read_bytes()).saves_when_asked

    job = Training(told(paths)).job
    assert says() is None
    job.end_step(1)
    assert not job.wants_save()
    job._beat("train")
    assert says() is True


def test_a_program_without_a_save_does_not_say_that_it_saves_until_it_has(paths: RunPaths) -> None:
    job = Attempt(told(paths))
    job.end_step(1)
    job.wants_save()
    assert "saves_when_asked" not in job.reports.known
    job.save(lambda directory: (directory / "state").write_text("1") and None)
    job.wants_save()
    assert job.reports.known["saves_when_asked"] is True
