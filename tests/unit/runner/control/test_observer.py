"""What one look after the other means; what follows from it is the daemon's business."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from runner.control.context import TrackedJob
from runner.control.messages import Observed
from runner.control.observer import AttemptEnded, Finding, Observer, Orphan
from runner.core.job.attempt import Allocation, Attempt
from runner.core.job.model import Job
from runner.core.job.states import Preparing, Running, State
from runner.core.ports.executor import Alive, Created, Gone, Observation
from runner.core.ports.store import JobRow
from tests.fakes.host.machine import ANN, Host, fresh_host


@dataclass
class Site:
    """An observer of a world that has one running job, or none."""

    host: Host
    entries: dict[str, TrackedJob] = field(default_factory=dict)
    seen: list[Observed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observer = Observer(
            self.host.daemon.context, self.entries, self.entries.keys(), self.seen.append
        )
        self.key = self.host.key("1")

    def add(self, state: State) -> None:
        row = JobRow(Job("1", state), "job", ANN, self.host.clock.now(), 50, "{}")
        self.entries["1"] = TrackedJob(row, self.host.daemon.context.moment())

    def run(self) -> None:
        self.add(Running(self.host.clock.now(), "img", Attempt(1, 1), Allocation()))

    def look(self, *found: Observation) -> list[Finding]:
        return list(self.observer.compare(Observed(self.host.clock.monotonic(), found)))


@pytest.fixture
def site() -> Iterator[Site]:
    with fresh_host() as host:
        yield Site(host)


def test_an_end_is_found_at_the_first_look(site: Site) -> None:
    site.run()
    gone = Gone(site.key, 0)
    assert site.look(gone) == [AttemptEnded(site.entries["1"], Attempt(1, 1), gone)]


def test_a_look_that_began_before_the_attempt_ran_proves_nothing(site: Site) -> None:
    site.run()
    assert [site.look() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("seen", [None, "created"])
def test_only_two_misses_in_a_row_are_an_end_without_a_trace(site: Site, seen: str | None) -> None:
    site.run()
    site.host.clock.forward(1)
    missed = () if seen is None else (Created(site.key),)
    assert site.look(*missed) == []
    assert site.look(Alive(site.key)) == []
    assert site.look(*missed) == []
    assert site.look(*missed) == [AttemptEnded(site.entries["1"], Attempt(1, 1), Gone(site.key, None))]


def test_a_job_whose_lane_is_at_work_is_not_judged(site: Site) -> None:
    site.run()
    site.host.work_queue.put("1", lambda: None)
    assert site.look(Gone(site.key, 0)) == []


def test_what_no_job_expects_is_cleared_away_only_when_it_has_ended(site: Site) -> None:
    site.add(Preparing(site.host.clock.now()))
    assert site.look(Alive(site.key)) == []
    assert site.look(Gone(site.key, 0)) == [Orphan(site.key)]


def test_a_mistake_while_looking_does_not_make_the_daemon_blind(site: Site) -> None:
    site.run()
    site.observer.stop()  # so that it does not wait between two looks
    site.host.attempt_service.mistake = ValueError("a log that is a directory")
    for _ in range(2):
        site.observer._round()
    assert site.observer._mistakes == 2
    site.host.attempt_service.mistake = None
    site.observer._round()
    assert site.observer._mistakes == 0
    assert len(site.seen) == 3


def test_an_engine_that_does_not_answer_is_looked_at_again_without_any_job(site: Site) -> None:
    site.observer.stop()
    site.observer._sweep = False
    site.host.context.down = True
    site.observer._round()
    assert (site.observer._sweep, site.seen) == (True, [])


def test_before_a_look_lanes_may_finish(site: Site) -> None:
    order: list[str] = []

    def seen(_: Observed) -> None:
        order.append("look")
        observer.stop()

    context, entries = site.host.daemon.context, site.entries
    observer = Observer(context, entries, entries.keys(), seen, lambda: order.append("calm"))
    observer.hint()
    observer.run()
    assert order == ["calm", "look"]
