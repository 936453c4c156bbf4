"""Damaged checkpoints, full disks, two writers: nothing is lost and nothing is silent."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.checkpoint import directory as lineage
from jobs.contract import MANIFEST, Cause, ExitCode
from jobs.training.failures import LineageBusy, Stopped, Superseded
from jobs.training.signals import StopRequests
from tests.unit.jobs.conftest import JobDir

Arrange = Callable[[dict[int, Callable[[], None]]], None]
Damage = Callable[[Path], None]


def truncate(checkpoint: Path) -> None:
    state = checkpoint / lineage.STATE
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])


def flip_one_bit(checkpoint: Path) -> None:
    state = checkpoint / lineage.STATE
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)


def empty_the_state(checkpoint: Path) -> None:
    (checkpoint / lineage.STATE).write_bytes(b"")


def lose_the_state(checkpoint: Path) -> None:
    (checkpoint / lineage.STATE).unlink()


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def empty_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).write_bytes(b"")


def tear_the_manifest(checkpoint: Path) -> None:
    text = (checkpoint / MANIFEST).read_text()
    (checkpoint / MANIFEST).write_text(text[:100])


def swap_the_state(checkpoint: Path) -> None:
    shutil.copy(checkpoint.with_name("step-00000002") / lineage.STATE, checkpoint / lineage.STATE)


def copy_an_older_one_over_it(checkpoint: Path) -> None:
    shutil.copytree(checkpoint.with_name("step-00000002"), checkpoint, dirs_exist_ok=True)


def replace_by_a_link(checkpoint: Path) -> None:
    (checkpoint / lineage.STATE).unlink()
    (checkpoint / lineage.STATE).symlink_to("/etc/passwd")


def replace_by_a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.write_bytes(b"not a directory")


DAMAGES = [
    (truncate, "bytes where the manifest says"),
    (flip_one_bit, "content differs from its sha256"),
    (empty_the_state, "0 bytes where the manifest says"),
    (lose_the_state, "No such file"),
    (lose_the_manifest, "no manifest"),
    (empty_the_manifest, "manifest is not valid"),
    (tear_the_manifest, "manifest is not valid"),
    (swap_the_state, "content differs from its sha256"),
    (copy_an_older_one_over_it, "manifest is for step 2"),
    (replace_by_a_link, "Too many levels of symbolic links"),
    (replace_by_a_file, "manifest cannot be read"),
]


NAMES = [damage.__name__ for damage, _ in DAMAGES]


@pytest.fixture
def stopped(job: JobDir, before_step: Arrange, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job in lineage 1 with checkpoints of steps 2, 4 and 6, and in lineage 2 the same job undisturbed."""
    job.train(lineage=2)
    requests = StopRequests()

    def stop() -> None:
        requests.stop = True

    with monkeypatch.context() as patched:
        patched.setattr("jobs.__main__.listen", lambda: requests)
        before_step({5: stop})
        assert job.train(lineage=1) == ExitCode.STOPPED
    before_step({})
    assert job.names() == {"step-00000002", "step-00000004", "step-00000006"}
    return job


@pytest.mark.parametrize(("damage", "why"), DAMAGES, ids=NAMES)
def test_a_damaged_checkpoint_is_skipped_reported_and_costs_no_bit(
    stopped: JobDir, capfd: pytest.CaptureFixture[str], damage: Damage, why: str
) -> None:
    damage(stopped.lineage() / "step-00000006")
    assert stopped.train() == ExitCode.FINISHED
    result = stopped.result()
    assert result.resumed_from == 4
    assert [each.name for each in result.rejected] == ["step-00000006"]
    assert why in result.rejected[0].why
    assert f"step-00000006 was not used: {result.rejected[0].why}" in capfd.readouterr().err
    assert any(name.startswith("bad-step-00000006") for name in stopped.names())
    assert stopped.state_sha256(8, 1) == stopped.state_sha256(8, 2)


def test_when_no_checkpoint_is_valid_it_ends_with_99_and_touches_nothing(stopped: JobDir) -> None:
    directory = stopped.lineage()
    for number, (damage, _) in enumerate(DAMAGES[1:4]):
        damage(directory / f"step-{2 * number + 2:08d}")
    (directory / ".tmp-7-cafe").mkdir()
    before = sorted(directory.rglob("*"))
    assert stopped.train() == ExitCode.NO_VALID_CHECKPOINT
    result = stopped.result()
    assert result.cause is Cause.NO_VALID_CHECKPOINT
    assert [each.name for each in result.rejected] == ["step-00000006", "step-00000004", "step-00000002"]
    assert sorted(directory.rglob("*")) == before


def test_rejected_checkpoints_alone_are_no_reason_for_a_fresh_start(stopped: JobDir) -> None:
    directory = stopped.lineage()
    for path in list(directory.glob("step-*")):
        lineage.set_aside(path, "bad")
    assert stopped.train() == ExitCode.NO_VALID_CHECKPOINT
    assert "rejected earlier" in stopped.result().message


def test_no_more_than_three_rejected_checkpoints_are_kept(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"step-{number:08d}"
        path.mkdir()
        lineage.set_aside_bad(path)
    assert len(list(tmp_path.glob("bad-*"))) == lineage.BAD_KEPT
    assert not list(tmp_path.glob(".trash-*"))


def test_what_a_kill_left_half_done_is_swept(stopped: JobDir) -> None:
    for name in (".tmp-7-cafe", ".trash-step-00000001-cafe"):
        (stopped.lineage() / name).mkdir()
        (stopped.lineage() / name / lineage.STATE).write_bytes(b"half")
    assert stopped.train() == ExitCode.FINISHED
    assert {path.name for path in stopped.lineage().iterdir() if path.name.startswith(".")} == {
        ".lock",
        ".owner",
        ".fence",
    }


def test_a_damaged_final_model_is_published_again(job: JobDir) -> None:
    job.train()
    first = job.result()
    (job.lineage() / "final" / lineage.WEIGHTS).write_bytes(b"")
    assert job.train() == ExitCode.FINISHED
    assert job.result().resumed_from == 8
    assert job.result().weights_sha256 == first.weights_sha256


def test_only_as_many_checkpoints_as_asked_for_are_kept(job: JobDir) -> None:
    job.train(checkpoint={"every_steps": 1, "keep": 2})
    assert job.names() == {"step-00000007", "step-00000008", "final"}


def test_a_busy_lineage_is_waited_for_and_then_said_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(LineageBusy, match="locked by another process"),
            lineage.locked(tmp_path, StopRequests(), 0.1),
        ):
            pytest.fail("two writers")


def test_waiting_for_a_busy_lineage_ends_when_asked_to_stop(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Stopped), lineage.locked(tmp_path, StopRequests(stop=True)):
            pytest.fail("two writers")


def test_the_lock_is_free_again_after_an_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        with lineage.locked(tmp_path, StopRequests(), 0.0):
            assert (tmp_path / ".lock").exists()


def test_an_earlier_attempt_that_holds_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    with lineage.locked(tmp_path, StopRequests(), attempt=1):
        with lineage.locked(tmp_path, StopRequests(), 0.0, attempt=2):
            assert lineage.owner_of(tmp_path) == 2
        with pytest.raises(Superseded, match="attempt 2 has taken this lineage over"):
            lineage.fence(tmp_path, 1)


def test_the_same_attempt_is_not_started_twice(tmp_path: Path) -> None:
    with (
        lineage.locked(tmp_path, StopRequests(), attempt=3),
        pytest.raises(LineageBusy),
        lineage.locked(tmp_path, StopRequests(), 0.0, attempt=3),
    ):
        pytest.fail("two writers")


def test_an_attempt_whose_lineage_was_taken_over_publishes_nothing_more(
    job: JobDir, before_step: Callable[[dict[int, Callable[[], None]]], None]
) -> None:
    def take_over() -> None:
        (job.lineage() / ".owner").write_text("7")

    before_step({5: take_over})
    assert job.train(profile={"async_save": False}) == ExitCode.SUPERSEDED
    assert job.result().cause is Cause.SUPERSEDED
    assert job.names() == {"step-00000002", "step-00000004"}
