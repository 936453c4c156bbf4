"""An engine with a queue of its own: what is accepted waits, begins later, and may be ended by the engine."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.core.job.events import CancelRequested
from runner.core.job.model import Job
from runner.core.job.states import Held, Queued, Running, Starting
from runner.core.ports.executor import Alive, EndReason, Gone, Key, Unknown, Waiting
from runner.core.scheduler.snapshot import GIB, ResourceRequest
from runner.server.api.views import summary
from runner.server.api.why import reason
from tests.fakes.host.machine import Host, fresh_host

LIMIT = timedelta(hours=1)
SOON = datetime(2030, 1, 1, 2, tzinfo=UTC)


@pytest.fixture
def host() -> Iterator[Host]:
    with fresh_host(queues=True) as host:
        yield host


def accepted(host: Host, time_limit: timedelta | None = None) -> Key:
    """Submit a job and return the key of its attempt, which waits in the queue of the engine."""
    job_id = host.submit(time_limit=time_limit)
    host.settle()
    assert host.state(job_id) == "starting"
    return host.key(job_id)


def job(host: Host, key: Key) -> Job:
    return host.row(key.job_id).job


def lost(host: Host, key: Key, why: EndReason, code: int | None = None, error: str = "") -> None:
    """End an attempt as the engine does, on its own."""
    host.context.end(key, code, error=error)
    gone = host.context.attempts[key]
    assert isinstance(gone, Gone)
    host.context.attempts[key] = replace(gone, reason=why)
    host.settle()


def test_what_is_accepted_starts_only_when_the_engine_begins_it(host: Host) -> None:
    key = accepted(host)
    host.wait(3600)
    assert isinstance(job(host, key).state, Starting)
    host.context.begin(key, "node3", ("gpu:1",))
    host.settle()
    state = job(host, key).state
    assert isinstance(state, Running)
    assert (state.attempt.host, state.attempt.host_devices) == ("node3", ("gpu:1",))
    assert state.since == host.clock.now()


def test_a_time_limit_does_not_run_while_an_attempt_waits_in_the_engines_queue(host: Host) -> None:
    key = accepted(host, time_limit=LIMIT)
    host.wait(2 * LIMIT.total_seconds())
    assert host.state(key.job_id) == "starting"
    host.context.begin(key, "node1")
    host.settle()
    state = job(host, key).state
    assert isinstance(state, Running)
    assert state.deadline == host.clock.now() + LIMIT


def test_an_engine_that_is_silent_is_told_by_why_and_in_the_list(host: Host) -> None:
    key, silent = accepted(host), "slurmctld has not answered since noon"
    host.context.attempts[key] = Unknown(key, silent)
    host.settle()
    assert str(reason(host.daemon, host.row(key.job_id))["why"]).endswith(f": {silent}")
    assert summary(host.row(key.job_id), host.daemon.why(key.job_id), None)["why"] == silent
    host.context.attempts[key] = Waiting(key, "Slurm: waits for resources")
    host.settle()
    assert silent not in str(reason(host.daemon, host.row(key.job_id))["why"])


def test_the_reason_of_the_engine_and_its_estimate_are_told(host: Host) -> None:
    key = accepted(host)
    host.context.attempts[key] = Waiting(key, "Slurm: waits for resources", SOON)
    host.settle()
    said = reason(host.daemon, host.row(key.job_id))
    assert said["why"] == "attempt 1 waits in the queue of the engine: Slurm: waits for resources"
    assert said["starts_at"] == "2030-01-01T02:00:00.000Z"
    host.context.begin(key, "node3", ("gpu:1",))
    host.settle()
    assert str(reason(host.daemon, host.row(key.job_id))["why"]).startswith(
        "attempt 1 runs on gpu:1 of node3"
    )


def test_a_cancelled_job_leaves_the_queue_of_the_engine(host: Host) -> None:
    key = accepted(host)
    host.daemon.apply_event(host.row(key.job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.state(key.job_id) == "finished"
    assert not host.context.launches
    assert key not in host.context.attempts


def test_a_daemon_that_was_killed_finds_what_it_had_handed_over(host: Host) -> None:
    key = accepted(host)
    host.boot()
    host.settle()
    assert host.state(key.job_id) == "starting"
    host.context.begin(key, "node2")
    host.settle()
    assert host.state(key.job_id) == "running"
    assert [each.key for each in host.context.launches] == [key]


def test_an_engine_that_has_begun_while_the_daemon_was_down_is_believed(host: Host) -> None:
    key = accepted(host)
    host.context.begin(key, "node2")
    host.boot()
    host.settle()
    assert host.state(key.job_id) == "running"


@pytest.mark.parametrize("why", [EndReason.NODE_FAILED, EndReason.STARTED_TWICE, EndReason.PREEMPTED])
def test_what_the_engine_takes_away_goes_on_and_is_not_charged(host: Host, why: EndReason) -> None:
    key = accepted(host)
    host.context.begin(key, "node1")
    host.settle()
    lost(host, key, why)
    assert isinstance(job(host, key).state, Queued | Starting)
    assert job(host, key).history.charged == 0


def test_the_next_attempt_does_not_wait_for_one_that_is_frozen_on_a_lost_node(host: Host) -> None:
    key = accepted(host)
    host.context.begin(key, "node1")
    host.settle()
    host.attempt_service.locked.add((key.job_id, 1))
    lost(host, key, EndReason.NODE_FAILED)
    host.wait(3600)
    assert [waiting.attempt for waiting in host.context.queue] == [2]


def test_a_job_that_a_person_cancels_in_the_engine_is_held(host: Host) -> None:
    key = accepted(host)
    host.context.begin(key, "node1")
    host.settle()
    lost(host, key, EndReason.CANCELLED_ELSEWHERE, error="cancelled in Slurm by uid 1001")
    state = job(host, key).state
    assert isinstance(state, Held)
    assert state.why == "cancelled in Slurm by uid 1001"


def test_devices_that_this_host_does_not_have_are_the_engines_matter(host: Host) -> None:
    host.attempt_service.needs_of["1"] = ResourceRequest(2.0, GIB, 8, "nvidia", models=("B200",))
    assert host.context.queue[accepted(host)].devices == ()


def test_what_the_engine_has_suspended_says_so_until_it_goes_on(host: Host) -> None:
    key = accepted(host)
    host.context.begin(key, "node3")
    host.settle()
    host.context.attempts[key] = Alive(key, host="node3", suspended=True)
    host.wait(60)
    assert "suspended by the engine" in str(reason(host.daemon, host.row(key.job_id))["why"])
    assert host.daemon.tracked_jobs[key.job_id].suspended
    host.context.attempts[key] = Alive(key, host="node3")
    host.wait(60)
    assert "suspended" not in str(reason(host.daemon, host.row(key.job_id))["why"])
    assert not host.daemon.tracked_jobs[key.job_id].suspended


def held_s(host: Host, key: Key) -> list[float]:
    """Return for how long each attempt of a job has held what it asks for, until it ended or until now."""
    spans = SqliteAccounting(host.store).of_job(key.job_id)
    return [(host.clock.now().timestamp() if s.ended_s is None else s.ended_s) - s.placed_s for s in spans]


def test_what_waits_in_the_engines_queue_holds_nothing_until_it_begins(host: Host) -> None:
    key = accepted(host)
    host.wait(3600)
    usage = host.daemon.scheduler.jobs.usage
    usage.advance(host.clock.monotonic())
    assert held_s(host, key) == []
    assert usage.users.rounded() == {}
    host.context.begin(key, "node3", ("gpu:1",))
    host.settle()
    host.wait(600)
    usage.advance(host.clock.monotonic())
    assert held_s(host, key) == [pytest.approx(600, abs=60)]
    assert usage.users.rounded() != {}


def test_a_job_that_is_cancelled_in_the_engines_queue_has_held_nothing(host: Host) -> None:
    key = accepted(host)
    host.wait(3600)
    host.daemon.apply_event(host.row(key.job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert held_s(host, key) == []


def test_an_attempt_that_began_and_ended_while_no_daemon_ran_counts_from_when_it_was_handed_over(
    host: Host,
) -> None:
    key = accepted(host)
    host.context.begin(key, "node2")
    host.context.end(key, 0)
    host.clock.forward(3600)
    host.boot()
    host.settle()
    assert host.state(key.job_id) == "finished"
    assert len(held_s(host, key)) == 1
