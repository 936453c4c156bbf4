"""Meaning of observations of the executor, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Event

import pytest

from runner.control.context import TrackedJob
from runner.control.messages import Observed
from runner.control.observer import AttemptEnded, Finding, Observer, Orphan
from runner.core.job.attempt import Allocation, Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Running, State
from runner.core.ports.executor import Alive, Created, Gone, Observation, Unknown
from runner.core.ports.store import JobRow
from tests.fakes.host.machine import ANN, Host, fresh_host
from tests.fakes.patience import patience


@dataclass
class Site:
    """An observer of a world that has one running job, or none."""

    host: Host
    entries: dict[str, TrackedJob] = field(default_factory=dict)
    seen: list[Observed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observer = Observer(
            self.host.daemon.context, self.entries, self.entries.keys(), self.seen.append, lambda: None
        )
        self.key = self.host.key("1")

    def add(self, state: State) -> None:
        row = JobRow(Job("1", state), "job", ANN, self.host.clock.now(), 50, RevisionText.of("{}"))
        self.entries["1"] = TrackedJob(row, self.host.daemon.context.moment())

    def run(self) -> None:
        self.add(Running(self.host.clock.now(), "img", Attempt(1, 1), Allocation()))

    def look(self, *found: Observation) -> list[Finding]:
        return list(self.observer.compare(Observed(self.host.clock.monotonic(), found)))


def ended(found: list[Finding]) -> list[AttemptEnded]:
    return [each for each in found if isinstance(each, AttemptEnded)]


@pytest.fixture
def site() -> Iterator[Site]:
    with fresh_host() as host:
        yield Site(host)


def test_an_exit_is_found_by_the_first_observation(site: Site) -> None:
    site.run()
    gone = Gone(site.key, 0)
    assert site.look(gone) == [AttemptEnded(site.entries["1"], Attempt(1, 1), gone)]


def test_an_observation_that_began_before_the_attempt_ran_proves_nothing(site: Site) -> None:
    site.run()
    assert [site.look() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("seen", [None, "created"])
def test_only_two_misses_in_a_row_mean_that_an_attempt_vanished(site: Site, seen: str | None) -> None:
    site.run()
    site.host.clock.forward(1)
    missed = () if seen is None else (Created(site.key),)
    assert site.look(*missed) == []
    assert site.look(Alive(site.key)) == []
    assert site.look(*missed) == []
    assert site.look(*missed) == [AttemptEnded(site.entries["1"], Attempt(1, 1), Gone(site.key, None))]


def test_the_end_of_a_start_that_is_not_recorded_is_no_exit_code_of_the_attempt(site: Site) -> None:
    site.run()
    at = site.host.clock.now()
    before, after = at - timedelta(seconds=1), at + timedelta(seconds=1)
    ours = Gone(site.key, 0, at=after, started=before)
    assert [found.gone for found in ended(site.look(ours))] == [ours]
    (found,) = ended(site.look(replace(ours, started=after)))
    assert found.gone.exit_code is None
    assert "started again from outside" in found.gone.error


def test_an_attempt_that_cannot_be_observed_is_left_alone_and_its_job_says_why(site: Site) -> None:
    site.run()
    site.host.clock.forward(1)
    unknown = Unknown(site.key, "the engine says 500")
    assert [site.look(unknown) for _ in range(3)] == [[], [], []]
    assert site.entries["1"].why == "the engine says 500"
    assert site.look(Alive(site.key)) == []
    assert not site.entries["1"].why


def test_a_job_whose_command_waits_for_the_engine_says_that_the_engine_is_silent(site: Site) -> None:
    site.run()
    site.host.work_queue.put("1", lambda: None, "ann")
    assert site.look(Unknown(site.key, "slurmctld has not answered since noon")) == []
    assert site.entries["1"].why == "slurmctld has not answered since noon"


def test_an_unexpected_attempt_that_cannot_be_observed_is_not_removed(site: Site) -> None:
    assert site.look(Unknown(site.key, "the engine says 500")) == []


def test_a_job_with_unfinished_work_is_not_compared(site: Site) -> None:
    site.run()
    site.host.work_queue.put("1", lambda: None, "ann")
    assert site.look(Gone(site.key, 0)) == []


def test_an_unexpected_attempt_is_removed_only_when_it_has_ended(site: Site) -> None:
    site.add(Preparing(site.host.clock.now()))
    assert site.look(Alive(site.key)) == []
    assert site.look(Gone(site.key, 0)) == [Orphan(site.key)]


def test_the_executor_is_observed_again_after_an_unexpected_error(site: Site) -> None:
    site.run()
    site.observer.stop()  # so that it does not wait between two looks
    site.host.attempt_service.mistake = ValueError("a log that is a directory")
    with pytest.raises(ValueError, match="a log that is a directory"):
        site.observer._round()
    site.entries.clear()
    site.host.attempt_service.mistake = None
    site.observer._round()
    site.observer._round()
    assert len(site.seen) == 2


def test_an_executor_that_does_not_answer_is_observed_again_without_any_job(site: Site) -> None:
    site.observer.stop()
    site.host.context.down = True
    site.observer._round()
    assert (site.observer._requested, site.seen) == (True, [])
    assert site.observer.problem == "the engine does not answer"
    site.host.context.down = False
    site.observer._round()
    assert site.observer.problem is None


def test_workers_may_finish_before_an_observation(site: Site) -> None:
    order: list[str] = []

    done = Event()

    def seen(_: Observed) -> None:
        order.append("look")
        observer.stop()
        done.set()

    context, entries = site.host.daemon.context, site.entries
    observer = Observer(context, entries, entries.keys(), seen, lambda: order.append("calm"))
    observer.hint()
    observer.start()
    assert done.wait(patience())
    observer.join(patience())
    assert order == ["calm", "look"]
