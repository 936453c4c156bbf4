"""The end of an attempt is the engine's time, not that of the daemon that finds out."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from runner.agent.interface import ExitFindings
from runner.core.job.events import CancelRequested
from runner.core.job.states import Finished
from runner.core.ports.executor import Gone
from tests.fakes.host.machine import Host

HOUR = timedelta(hours=1)


def ran(host: Host, job_id: str) -> timedelta:
    return host.row(job_id).job.history.ran


def end(host: Host, job_id: str, code: int | None, at: datetime | None) -> None:
    """End an attempt that nobody observes."""
    key = host.key(job_id)
    del host.context.running[key]
    host.context.attempts[key] = Gone(key, code, at=at)


def begun(host: Host, limit: timedelta | None = None) -> tuple[str, datetime]:
    job_id = host.submit(time_limit=limit)
    host.settle()
    assert host.state(job_id) == "running"
    return job_id, host.clock.now()


def ended_at(host: Host, job_id: str) -> datetime:
    """Return when the attempt of a job ended, as its events say."""
    return next(row.at for row, _ in host.store.events(0, job_id, 100) if row.kind == "exited")


@pytest.mark.parametrize("code", [0, 1])
def test_an_attempt_that_ends_without_a_daemon_is_charged_until_its_end(host: Host, code: int) -> None:
    job_id, start = begun(host)
    host.clock.forward(60)
    end(host, job_id, code, host.clock.now())
    host.clock.forward(HOUR.total_seconds())
    host.boot()
    host.settle()
    assert ended_at(host, job_id) == start + timedelta(seconds=60)
    if code:
        assert ran(host, job_id) == timedelta(seconds=60)
    else:
        assert host.row(job_id).job.state.since == start + timedelta(seconds=60)


def test_a_job_that_completed_before_its_limit_was_not_asked_to_stop(host: Host) -> None:
    job_id, _ = begun(host, HOUR)
    host.clock.forward(60)
    end(host, job_id, 0, host.clock.now())
    host.clock.forward(2 * HOUR.total_seconds())
    host.boot()
    host.daemon.run_once(0)  # it is known to be due before anything was observed
    host.settle()
    state = host.row(job_id).job.state
    assert isinstance(state, Finished)
    assert state.why == "completed"
    assert host.context.signals == []


def test_a_failure_before_the_limit_is_no_end_by_the_limit(host: Host) -> None:
    job_id, _ = begun(host, HOUR)
    host.clock.forward(60)
    end(host, job_id, 1, host.clock.now())
    host.clock.forward(2 * HOUR.total_seconds())
    host.boot()
    host.settle()
    assert not isinstance(host.row(job_id).job.state, Finished)
    assert ran(host, job_id) == timedelta(seconds=60)


def test_a_cancelled_job_that_had_completed_has_completed(host: Host) -> None:
    job_id, _ = begun(host)
    end(host, job_id, 0, host.clock.now())
    host.clock.forward(60)
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.row(job_id).job.state.why == "completed"  # type: ignore[union-attr]


def test_an_end_that_only_the_engine_noticed_was_at_the_last_sign_of_life(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: the engine names the time of the next boot."""
    job_id, start = begun(host)
    host.clock.forward(60)
    sign, examine = host.clock.now(), host.attempt_service.examine

    def with_sign(*args: object) -> ExitFindings:
        return replace(examine(*args), last_sign=sign)  # type: ignore[arg-type]

    monkeypatch.setattr(host.attempt_service, "examine", with_sign)
    host.clock.forward(HOUR.total_seconds())
    end(host, job_id, None, host.clock.now())
    host.settle()
    assert ended_at(host, job_id) - start == timedelta(seconds=60)


@pytest.mark.parametrize("at_s", [-3600, 7200])
def test_an_end_is_never_before_the_start_nor_in_the_future(host: Host, at_s: int) -> None:
    job_id, start = begun(host)
    host.clock.forward(60)
    end(host, job_id, 1, start + timedelta(seconds=at_s))
    host.settle()
    assert start <= ended_at(host, job_id) <= host.clock.now()
    assert ran(host, job_id) == (timedelta() if at_s < 0 else timedelta(seconds=60))
