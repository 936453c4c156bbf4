"""Messages about a Slurm that answers late, or not at all."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from runner.adapters.slurm import queue
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.queue import QueueView
from runner.adapters.slurm.records import SlurmRecord
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread
from runner.core.ports.executor import EndReason, Gone, Key, LaunchRequest, Limits, Unknown, Waiting
from runner.core.ports.users import Owner
from tests.fakes.patience import patience

UID = 1000
DEAD = Unavailable("squeue: Unable to contact slurm controller (connect failure)")
CLAIMED = {".slurm-claim": "5 0 node2 boot"}
KEY = Key("fake", "7", 1)
SINCE = r"slurmctld has not answered since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC "


@dataclass(frozen=True, slots=True)
class FakeSlurm(SlurmCommands):
    """Commands that answer when the test lets them, with what it says."""

    answers: threading.Event = field(default_factory=threading.Event)
    rows: list[str] = field(default_factory=list)
    dead: list[Unavailable] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    accounted: str = ""

    def ask(self, program: str, *arguments: str, given: str | None = None) -> str:
        del given
        mark = next((each.split("|")[1] for each in arguments if each.startswith("--Format=")), "")
        self.asked.append(program)
        self.cancelled.extend(arguments[-1:] if program == "scancel" else ())
        assert self.answers.wait(patience())
        if self.dead:
            raise self.dead[0]
        if program in {"sbatch", "sacct"}:
            return "5\n" if program == "sbatch" else self.accounted
        users = next((each[7:].split(",") for each in arguments if each.startswith("--user=")), [])
        rows = [row for row in self.rows if row.split("|")[4] in users]
        return "".join(f"{row.replace('|', f'|{mark}|', 1)}\n" for row in rows)

    def knows(self, state: str, name: str = "runner-fake-7-1", number: int = 5, uid: int = UID) -> None:
        self.rows[:] = [row for row in self.rows if row.split("|")[4] != str(uid)]
        self.rows.append(f"{number}|{state}|None|node1|{uid}|N/A|0|{name}|/dev/null|")


@pytest.fixture
def slurm() -> Iterator[FakeSlurm]:
    fake = FakeSlurm()
    yield fake
    fake.answers.set()


@contextmanager
def working(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Do work on another thread, which has ended when the test goes on."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    thread.join(patience())
    assert not thread.is_alive()


def test_who_only_looks_is_told_at_once_that_there_is_no_answer_and_since_when(slurm: FakeSlurm) -> None:
    view = QueueView(slurm, prompt_s=0.0)
    with pytest.raises(Unavailable, match=rf"^{SINCE}\(squeue: no answer yet\)$") as first:
        view.look([UID], 5.0, prompt=True)
    with pytest.raises(Unavailable) as second:
        view.look([UID], 5.0, prompt=True)
    assert str(first.value) == str(second.value)
    slurm.answers.set()
    view.look([UID], 60.0)
    assert slurm.asked == ["squeue"]  # not again while it has not answered


def test_the_error_of_the_command_is_told_and_the_time_of_the_first_question_stays(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "AGAIN_S", 0.0)
    view = QueueView(slurm)
    slurm.answers.set()
    slurm.dead.append(DEAD)
    told = []
    for _ in range(3):
        with pytest.raises(Unavailable, match=rf"^{SINCE}\(squeue: Unable to contact") as error:
            view.look([UID], 5.0)
        told.append(str(error.value))
    assert len(set(told)) == 1
    slurm.dead.clear()
    slurm.knows("RUNNING")
    assert view.look([UID], 5.0).rows["5"].state == "RUNNING"


def test_a_dead_slurm_is_not_asked_again_at_once(slurm: FakeSlurm) -> None:
    view = QueueView(slurm)
    slurm.answers.set()
    slurm.dead.append(DEAD)
    for _ in range(2):
        with pytest.raises(Unavailable, match="Unable to contact"):
            view.look([UID], 0.0)
    assert slurm.asked == ["squeue"]


def test_after_a_late_answer_the_next_one_is_waited_for(slurm: FakeSlurm) -> None:
    view = QueueView(slurm, prompt_s=0.0)
    with pytest.raises(Unavailable, match="no answer yet"):
        view.look([UID], 0.0, prompt=True)
    slurm.knows("RUNNING")
    slurm.answers.set()
    assert view.look([UID], 0.0).rows["5"].state == "RUNNING"  # it is late, by the limit of this test
    slurm.answers.clear()
    found: list[str] = []
    with working(lambda: found.append(view.look([UID], 0.0, prompt=True).rows["5"].state)):
        slurm.answers.set()
    assert found == ["RUNNING"]


def test_an_answer_that_was_asked_for_before_a_change_is_not_taken_for_one_after_it(slurm: FakeSlurm) -> None:
    view = QueueView(slurm, prompt_s=0.0)
    with pytest.raises(Unavailable, match="no answer yet"):
        view.look([UID], 5.0, prompt=True)
    view.expire()
    slurm.knows("RUNNING")
    slurm.answers.set()
    view.look([UID], 60.0)
    assert slurm.asked == ["squeue", "squeue"]
    view.look([UID], 60.0)
    assert slurm.asked == ["squeue", "squeue"]


def executor_of(slurm: FakeSlurm, directory: Path, prompt_s: float = 0.0) -> SlurmExecutor:
    made = SlurmExecutor(SlurmExecutorSettings("fake", directory / "books", slurm))
    made.queue.prompt_s = prompt_s
    return made


def booked(directory: Path, number: str | None = None, key: Key = KEY, uid: int = UID) -> Path:
    """Record an attempt as handed over, and return its directory."""
    attempt_dir = directory / key.job_id / "attempts" / "1"
    attempt_dir.mkdir(parents=True)
    request = LaunchRequest(
        key,
        "tiny",
        Owner(uid, uid, f"user-{uid}"),
        "",
        ("true",),
        directory,
        attempt_dir / "log.txt",
        Limits(1.0, 2**20),
    )
    record = SlurmRecord(directory / "books" / f"runner-fake-{key.job_id}-1")
    record.create(request, 0.0)
    if number is not None:
        record.set_number(number)
    return attempt_dir


@pytest.mark.parametrize(
    ("number", "files", "said"),
    [
        (None, {}, "the attempt has not been handed over; that is tried again"),
        ("5", {}, "job 5 had not begun; it keeps its place in Slurm's queue"),
        ("5", CLAIMED, "the attempt began on node2 and is taken to run there; its log"),
        ("5", {**CLAIMED, ".slurm-exit": "3"}, "the attempt has ended with exit code 3; "),
    ],
)
def test_without_an_answer_an_attempt_says_what_is_still_true(
    slurm: FakeSlurm, tmp_path: Path, number: str | None, files: dict[str, str], said: str
) -> None:
    executor = executor_of(slurm, tmp_path)
    attempt_dir = booked(tmp_path, number)
    for name, text in files.items():
        (attempt_dir / name).write_text(text)
    (found,) = executor.observe()
    assert isinstance(found, Unknown)
    assert found.why.startswith("slurmctld has not answered since ")
    assert f"(squeue: no answer yet); {said}" in found.why


def test_an_exit_code_of_0_is_an_end_without_slurms_word(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor = executor_of(slurm, tmp_path)
    (booked(tmp_path, "5") / ".slurm-exit").write_text("0")
    (found,) = executor.observe()
    assert isinstance(found, Gone)
    assert found.exit_code == 0
    assert slurm.asked == []


@pytest.mark.parametrize("target", ["x" * 300, "/proc/self/status"])
def test_a_link_in_the_place_of_an_exit_status_hides_the_start_of_nobodys_attempt(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    looks: list[Callable[[], None]] = []
    monkeypatch.setattr(PeriodicThread, "start", lambda thread: looks.append(thread._work))
    executor = executor_of(slurm, tmp_path)
    booked(tmp_path, "5").joinpath(".slurm-exit").symlink_to(target)
    begins = booked(tmp_path, "6", Key("fake", "8", 1), UID + 1) / ".slurm-claim"
    woken: list[bool] = []
    executor.watch(lambda: woken.append(begins.exists()))
    (look,) = looks
    look()
    begins.write_text("6 0 node1 boot")
    look()
    look()
    assert woken == [True]


def removed(slurm: FakeSlurm, directory: Path, state: str, patience_s: float) -> list[str]:
    """Remove an attempt with an exit status whose job is in a state; return what Slurm was asked."""
    executor = executor_of(slurm, directory)
    executor.settings = replace(executor.settings, patience_s=patience_s)
    (booked(directory, "5") / ".slurm-exit").write_text("0")
    slurm.knows(state)
    slurm.answers.set()
    executor.remove(KEY)
    assert not list((directory / "books").glob("runner-*"))
    return slurm.asked


def test_what_runs_on_after_a_program_has_written_its_own_end_is_cancelled(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    assert removed(slurm, tmp_path, "RUNNING", 0.0) == ["squeue", "scancel"]


@pytest.mark.parametrize("exit_code", ["0", ""])
@pytest.mark.parametrize("claimed", ["9", "404"])
def test_a_job_is_cancelled_although_its_program_has_claimed_the_number_of_another(
    slurm: FakeSlurm, tmp_path: Path, claimed: str, exit_code: str
) -> None:
    executor = executor_of(slurm, tmp_path, patience())
    executor.settings = replace(executor.settings, patience_s=0.0)
    attempt_dir = booked(tmp_path, "5")
    (attempt_dir / ".slurm-claim").write_text(f"{claimed} 0 node1 boot")
    slurm.knows("RUNNING")
    slurm.rows.append(slurm.rows[0].replace("5|RUNNING", "9|COMPLETED"))
    slurm.rows.append(f"7|RUNNING|None|node1|{UID}|N/A|0|another|/dev/null|")
    slurm.answers.set()
    executor.observe()
    (attempt_dir / ".slurm-exit").write_text(exit_code)
    (found,) = executor.observe()
    assert isinstance(found, Gone)
    executor.remove(KEY)
    assert slurm.cancelled == ["5"]


def test_a_job_that_slurm_has_not_ended_yet_is_given_time(slurm: FakeSlurm, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Slurm has not ended it yet"):
        removed(slurm, tmp_path, "RUNNING", 60.0)
    assert slurm.asked == ["squeue"]


@pytest.mark.parametrize("state", ["COMPLETING", "COMPLETED"])
def test_the_job_of_a_program_that_has_ended_is_left_alone(
    slurm: FakeSlurm, tmp_path: Path, state: str
) -> None:
    assert removed(slurm, tmp_path, state, 0.0) == ["squeue"]


def test_when_slurm_answers_again_the_attempt_is_what_it_is(slurm: FakeSlurm, tmp_path: Path) -> None:
    executor = executor_of(slurm, tmp_path)
    booked(tmp_path, "5")
    assert isinstance(executor.observe()[0], Unknown)
    slurm.knows("PENDING")
    slurm.answers.set()
    executor.queue.look([UID], 0.0)
    assert isinstance(executor.observe()[0], Waiting)


def test_the_answer_about_one_user_says_nothing_about_the_jobs_of_another(slurm: FakeSlurm) -> None:
    view = QueueView(slurm)
    slurm.answers.set()
    slurm.knows("RUNNING")
    slurm.knows("RUNNING", "runner-fake-8-1", 6, UID + 1)
    assert set(view.look([UID], 60.0).rows) == {"5"}
    assert set(view.look([UID, UID + 1], 60.0).rows) == {"5", "6"}
    view.look([UID + 1], 60.0)
    assert slurm.asked == ["squeue", "squeue"]


def test_a_question_about_one_user_that_has_no_answer_yet_does_not_answer_for_another(
    slurm: FakeSlurm,
) -> None:
    view = QueueView(slurm, prompt_s=0.0)
    with pytest.raises(Unavailable, match="no answer yet"):
        view.look([UID], 60.0, prompt=True)
    slurm.knows("RUNNING", "runner-fake-8-1", 6, UID + 1)
    slurm.answers.set()
    assert set(view.look([UID + 1], 60.0).rows) == {"6"}


def test_the_removal_of_one_users_attempt_leaves_the_end_of_anothers_as_slurm_tells_it(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    executor, other = executor_of(slurm, tmp_path, patience()), Key("fake", "8", 1)
    booked(tmp_path, "5")
    killed = booked(tmp_path, "6", other, UID + 1)
    (killed / ".slurm-claim").write_text("6 0 node1 boot")
    (killed / ".slurm-exit").write_text("137")
    slurm.knows("CANCELLED")
    slurm.knows("OUT_OF_MEMORY", "runner-fake-8-1", 6, UID + 1)
    slurm.answers.set()
    executor.remove(KEY)
    (found,) = executor.observe()
    assert isinstance(found, Gone)
    assert (found.exit_code, found.oom_seen) == (137, True)


@pytest.mark.parametrize(
    ("accounted", "reason", "is_oom"),
    [
        ("5|OUT_OF_MEMORY|0:125|1000", None, True),
        ("5|PREEMPTED|0:15|1000", EndReason.PREEMPTED, False),
        ("5|RUNNING|0:0|1000", None, False),  # the accounting is behind
        ("", None, False),
    ],
)
def test_the_reason_for_an_end_that_slurmctld_has_forgotten_is_that_of_the_accounting(
    tmp_path: Path, accounted: str, reason: EndReason | None, *, is_oom: bool
) -> None:
    slurm = FakeSlurm(accounted=accounted)
    slurm.answers.set()
    executor = executor_of(slurm, tmp_path, patience())
    attempt_dir = booked(tmp_path, "5")
    (attempt_dir / ".slurm-claim").write_text("5 0 node1 boot")
    (attempt_dir / ".slurm-exit").write_text("137")
    (found,) = executor.observe()
    assert isinstance(found, Gone)
    assert (found.exit_code, found.reason, found.oom_seen) == (137, reason, is_oom)
