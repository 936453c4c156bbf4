"""Attempts on this machine or in a batch system, wherever they start first."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGTERM

import pytest

from runner.adapters.either import LAUNCH_S, Choices, EitherExecutor, Place, Room, Taken
from runner.base.errors import Unavailable
from runner.core.ports.executor import (
    Alive,
    BatchRequest,
    GpuRequest,
    Key,
    LaunchRefused,
    LaunchRequest,
    LaunchResult,
    Limits,
    Mount,
    Waiting,
)
from runner.core.ports.users import Owner
from tests.fakes.engine.executor import FakeBatchExecutor, FakeExecutor

ADA = Owner(1001, 1001, "ada")
GIB = 2**30
BOTH = ("local", "slurm")


class FakeSlurm(FakeBatchExecutor):
    """A batch system with an estimate."""

    def __init__(self) -> None:
        super().__init__("site")
        self.at: datetime | None = None
        self.asked = 0

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        del request
        self.asked += 1
        return self.at


@dataclass
class Site:
    root: Path
    local: FakeExecutor
    slurm: FakeSlurm

    def executor(self, *, mounts_here: bool = True) -> EitherExecutor:
        """Return a new executor, as a new daemon would have one; it has 2 CPUs and 4 GiB."""
        choices = Choices(self.root / "places")
        return EitherExecutor(self.local, self.slurm, Room(2.0, 4 * GIB), choices, mounts_here)

    def request(
        self, job: str, cpus: float = 1.0, places: tuple[str, ...] = BOTH, left: timedelta | None = None
    ) -> LaunchRequest:
        limits = Limits(cpus, GIB)
        batch = BatchRequest(limits, time_left=left, places=places, grace=timedelta())
        key, log = Key("site", job, 1), self.root / job / "log.txt"
        return LaunchRequest(key, job, ADA, "", ("true",), self.root / job, log, limits, batch=batch)

    def place(self, request: LaunchRequest) -> str:
        here = request.key in self.local.context.attempts
        there = request.key in self.slurm.context.attempts
        assert here != there
        return "local" if here else "slurm"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, FakeExecutor("site"), FakeSlurm())


def in_(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def test_what_fits_starts_here_and_what_does_not_goes_to_slurm(site: Site) -> None:
    executor = site.executor()
    requests = [site.request(name) for name in ("a", "b", "c")]
    assert [executor.launch(each) for each in requests] == [LaunchResult.ACCEPTED] * 3
    assert [site.place(each) for each in requests] == ["local", "local", "slurm"]
    found = {each.key.job_id: each for each in executor.observe()}
    assert isinstance(found["a"], Alive)
    assert found["a"].host == os.uname().nodename
    assert isinstance(found["c"], Waiting)
    assert found["c"].why == "Slurm: waits for resources; on this machine 0 CPUs and 2 GiB are free"


def test_of_two_launches_at_once_the_second_sees_what_the_first_takes(site: Site) -> None:
    executor = site.executor()
    both = threading.Barrier(2)

    class Slow(Choices):
        def set(self, key: Key, place: Place, taken: Taken) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)  # the other launch has chosen as well, unless it has to wait
            super().set(key, place, taken)

    executor.choices = Slow(executor.choices.directory)
    requests = [site.request(name, cpus=2.0) for name in ("a", "b")]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(executor.launch, requests))
    assert sorted(site.place(each) for each in requests) == ["local", "slurm"]


def test_a_job_that_names_no_place_runs_in_slurm(site: Site) -> None:
    executor = site.executor()
    request = site.request("a", places=("slurm",))
    executor.launch(request)
    executor.launch(replace(site.request("b"), batch=None))
    assert site.place(request) == "slurm"
    assert site.slurm.asked == 0


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (0, 2)])
def test_gpus_and_several_nodes_are_slurms(site: Site, gpus: int, nodes: int) -> None:
    request = site.request("a")
    assert request.batch is not None
    request = replace(request, batch=replace(request.batch, gpus=GpuRequest(gpus), nodes=nodes))
    site.executor().launch(request)
    assert site.place(request) == "slurm"


def test_mounts_that_nobody_pins_are_slurms(site: Site) -> None:
    request = replace(site.request("a"), mounts=(Mount(Path("/x"), Path("/data/x")),))
    site.executor(mounts_here=False).launch(request)
    assert site.place(request) == "slurm"
    again = replace(site.request("b"), mounts=request.mounts)
    site.executor().launch(again)
    assert site.place(again) == "local"


def test_a_launch_waits_for_this_machine_if_that_has_room_before_slurm(site: Site) -> None:
    executor = site.executor()
    executor.launch(site.request("long", 2.0, left=timedelta(hours=1)))
    site.slurm.at = in_(5)
    waits = site.request("waits")
    with pytest.raises(Unavailable, match=r"waits for room on this machine, where 0 CPUs .* in Slurm by"):
        executor.launch(waits)
    with pytest.raises(Unavailable):
        executor.launch(waits)
    assert site.slurm.asked == 1  # seldom
    executor.signal(site.request("long").key, SIGTERM)
    executor.remove(site.request("long").key)
    executor.launch(waits)
    assert site.place(waits) == "local"


@pytest.mark.parametrize(("left_h", "slurm_h"), [(5, 1), (None, 1), (5, None)])
def test_it_goes_to_slurm_if_that_is_sooner_or_nobody_knows(
    site: Site, left_h: float | None, slurm_h: float | None
) -> None:
    executor = site.executor()
    left = None if left_h is None else timedelta(hours=left_h)
    executor.launch(site.request("long", 2.0, left=left))
    site.slurm.at = None if slurm_h is None else in_(slurm_h)
    request = site.request("next")
    executor.launch(request)
    assert site.place(request) == "slurm"


def test_what_names_this_machine_alone_waits_for_it(site: Site) -> None:
    executor = site.executor()
    executor.launch(site.request("long", 2.0))
    with pytest.raises(Unavailable, match="waits for room on this machine"):
        executor.launch(site.request("here", places=("local",)))
    assert site.slurm.context.attempts == {}


def test_an_attempt_stays_where_it_is_whatever_a_later_daemon_would_choose(site: Site) -> None:
    first = site.request("a", 2.0)
    site.executor().launch(first)
    site.executor().launch(first)
    assert site.place(first) == "local"
    assert len(site.local.context.launches) == 1
    second = site.request("b", 2.0)
    site.executor().launch(second)
    executor = site.executor()
    executor.signal(first.key, SIGTERM)
    executor.remove(first.key)
    executor.launch(second)
    assert site.place(second) == "slurm"
    executor.signal(second.key, SIGTERM)
    executor.remove(second.key)
    assert executor.observe() == ()
    assert list((site.root / "places").iterdir()) == []


def test_a_refusal_here_holds_no_room(site: Site) -> None:
    executor = site.executor()
    site.local.context.refusals.append("no")
    with pytest.raises(LaunchRefused):
        executor.launch(site.request("a", 2.0))
    next_one = site.request("b", 2.0)
    executor.launch(next_one)
    assert site.place(next_one) == "local"


def test_an_attempt_that_is_not_there_holds_no_room_for_long(site: Site) -> None:
    executor = site.executor()
    executor.launch(site.request("lost", 2.0))
    site.local.context.attempts.clear()
    executor.observe()
    [choice] = (site.root / "places").iterdir()
    before = choice.stat().st_mtime - LAUNCH_S - 1
    os.utime(choice, (before, before))
    executor.observe()
    assert list((site.root / "places").iterdir()) == []


def test_an_answer_that_does_not_come_keeps_the_choice(site: Site) -> None:
    site.local.context.down = True
    request = site.request("a")
    with pytest.raises(Unavailable):
        site.executor().launch(request)
    site.local.context.down = False
    site.executor().launch(request)
    assert site.place(request) == "local"


def test_both_are_watched_and_planned(site: Site) -> None:
    executor = site.executor()
    woken: list[int] = []
    end = executor.watch(lambda: woken.append(1))
    executor.launch(site.request("a"))
    executor.launch(site.request("b", places=("slurm",)))
    assert len(woken) == 2
    end()
    assert site.local.context.watchers == site.slurm.context.watchers == {}
    assert executor.plan(site.request("a"))["name"] == "runner-site-a-1"
    assert executor.plan(site.request("a", places=("slurm",)))["name"] == "runner-site-a-1"
    assert (executor.kind, executor.queues, executor.in_container) == ("fake", True, False)


def test_a_file_that_is_torn_says_nothing(site: Site) -> None:
    choices = Choices(site.root / "places")
    key = Key("site", "a", 1)
    choices.directory.mkdir()
    (choices.directory / "runner-site-a-1.json").write_text("[")
    assert choices.of(key) is None
    assert list(choices.taken_here()) == []
