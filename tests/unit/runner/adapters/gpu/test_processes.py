"""Owners of processes, over a made-up ``/proc`` and over a real child of this process."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.adapters.gpu.processes import DeviceProcesses
from runner.base.errors import Unavailable
from runner.core.devices.reading import ProcessOnDevice
from runner.core.ports.executor import Alive, Created, Gone, Key, Observation

OURS, THEIRS = "a" * 64, "b" * 64


@dataclass
class Site:
    """Processes that are as a test says, and an executor with these attempts."""

    proc: Path
    attempts: list[Observation] = field(default_factory=list)
    asked: int = 0
    silent: bool = False

    def __post_init__(self) -> None:
        self.occupants = DeviceProcesses(self._observe, self.proc)

    def _observe(self) -> tuple[Observation, ...]:
        self.asked += 1
        if self.silent:
            raise Unavailable("the engine does not answer")
        return tuple(self.attempts)

    def process(self, pid: int, group: str = "/", **facts: int | str) -> None:
        known: dict[str, int | str] = {"parent": 1, "session": 1, "start": 7, "name": "python", **facts}
        path = self.proc / str(pid)
        path.mkdir(exist_ok=True)
        head = f"{pid} ({known['name']}) S {known['parent']} 1 {known['session']}"
        (path / "stat").write_text(f"{head} {' '.join(['0'] * 15)} {known['start']} 0 0\n")
        (path / "cgroup").write_text(f"0::{group}\n")

    def of(self, *pids: int) -> dict[int, tuple[str | None, bool]]:
        found = self.occupants.of([ProcessOnDevice(pid) for pid in pids])
        return {pid: (each.job, each.foreign) for pid, each in found.items()}


def attempt(job: str, pid: int | None = None, container: str | None = None) -> Alive:
    return Alive(Key("i", job, 1), pid, container)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_process_is_its_containers_whatever_manages_control_groups(site: Site) -> None:
    site.attempts = [attempt("7", container=OURS)]
    site.process(11, group=f"/docker/{OURS}")
    site.process(12, group=f"/system.slice/docker-{OURS}.scope/below")
    site.process(13, group=f"/docker/{THEIRS}")
    assert site.of(11, 12, 13) == {11: ("7", False), 12: ("7", False), 13: (None, True)}


def test_a_process_without_a_container_is_its_sessions_or_its_ancestors(site: Site) -> None:
    site.attempts = [attempt("7", pid=100)]
    site.process(100, session=100)
    site.process(101, parent=100, session=100)
    site.process(102, parent=100, session=102)
    site.process(103, parent=102, session=102)
    site.process(104, parent=1, session=100)
    site.process(1, parent=0)
    site.process(200, session=200)
    assert site.of(100, 101, 102, 103, 104, 200) == {
        **dict.fromkeys((100, 101, 102, 103, 104), ("7", False)),
        200: (None, True),
    }


def test_who_has_left_session_and_ancestors_is_foreign(site: Site) -> None:
    site.attempts = [attempt("7", pid=100)]
    site.process(300, parent=1, session=300)
    assert site.of(300) == {300: (None, True)}


def test_what_has_gone_or_is_hidden_is_unknown(site: Site) -> None:
    site.process(11)
    (site.proc / "11/cgroup").unlink()
    site.process(12)
    (site.proc / "12/stat").write_text("nonsense")
    assert site.of(10, 11, 12) == dict.fromkeys((10, 11, 12), (None, False))


def test_nobody_is_foreign_while_the_executor_does_not_answer(site: Site) -> None:
    site.silent = True
    site.process(11, name="python3")
    [found] = site.occupants.of([ProcessOnDevice(11)]).values()
    assert (found.job, found.foreign, found.program) == (None, False, "python3")
    site.silent = False
    assert site.of(11) == {11: (None, True)}


def test_nobody_in_a_container_is_foreign_while_an_attempt_is_only_created(site: Site) -> None:
    site.attempts = [Created(Key("i", "7", 1))]
    site.process(11, group=f"/docker/{OURS}")
    site.process(12)
    assert site.of(11, 12) == {11: (None, False), 12: (None, True)}
    site.attempts = [attempt("7", container=OURS)]
    assert site.of(11, 12) == {11: ("7", False), 12: (None, True)}


def test_the_executor_is_asked_only_about_those_that_are_new(site: Site) -> None:
    site.process(11)
    site.process(12)
    for _ in range(3):
        site.of(11)
    site.of(11, 12)
    site.of(11, 12)
    assert site.asked == 2


def test_a_later_process_of_the_same_number_is_another_one(site: Site) -> None:
    site.process(11)
    assert site.of(11) == {11: (None, True)}
    site.attempts = [attempt("7", pid=11)]
    site.process(11, start=8)
    assert site.of(11) == {11: ("7", False)}


def test_one_that_was_a_jobs_stays_so_when_the_attempt_has_ended(site: Site) -> None:
    site.attempts = [attempt("7", container=OURS)]
    site.process(11, group=f"/docker/{OURS}")
    site.of(11)
    site.attempts = [Gone(Key("i", "7", 1), 0)]
    site.process(12)
    assert site.of(11, 12)[11] == ("7", False)


def test_names_of_programs_may_have_brackets_and_blanks(site: Site) -> None:
    site.process(11, name="a (b) c")
    [found] = site.occupants.of([ProcessOnDevice(11)]).values()
    assert found.program == "a (b) c"


def test_ancestors_without_end_are_given_up(site: Site) -> None:
    site.process(11, parent=12)
    site.process(12, parent=11)
    assert site.of(11) == {11: (None, True)}


def test_a_user_without_a_name_has_a_number() -> None:
    from runner.adapters.gpu.processes import _user

    assert _user(4_000_000_000) == ""
    assert _user(0) == "root"


def test_one_that_ends_while_the_executor_is_asked_accuses_nobody(site: Site) -> None:
    """Its attempt may have ended with it, and then the executor does not name it any more."""

    def ends() -> tuple[Observation, ...]:
        shutil.rmtree(site.proc / "11")
        return ()

    site.process(11)
    [found] = DeviceProcesses(ends, site.proc).of([ProcessOnDevice(11)]).values()
    assert (found.job, found.foreign) == (None, False)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_one_that_has_ended_and_was_not_waited_for_is_unknown(site: Site, state: str) -> None:
    site.process(11)
    stat = site.proc / "11/stat"
    stat.write_text(stat.read_text().replace(") S ", f") {state} "))
    assert site.of(11) == {11: (None, False)}
