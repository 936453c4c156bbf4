"""A start that the engine carries out after its job has given it up does not live on."""

from signal import SIGKILL

import pytest

from runner.core.job.events import CancelRequested, HoldRequested
from runner.core.ports.executor import Alive, Waiting
from tests.fakes.engine.executor import FOREVER
from tests.fakes.host.machine import Host


@pytest.mark.parametrize("request_end", [CancelRequested, HoldRequested])
def test_an_attempt_that_starts_after_its_end_was_recorded_is_killed_and_removed(
    host: Host, request_end: type[CancelRequested | HoldRequested]
) -> None:
    job_id = host.submit()
    host.settle()
    key = host.key(job_id)
    host.daemon.apply_event(host.row(job_id), request_end(host.clock.now(), "ann"))
    host.settle()
    assert key not in host.context.attempts
    host.context.attempts[key], host.context.running[key] = Alive(key), FOREVER
    host.settle()
    assert (key, SIGKILL) in host.context.signals
    assert key not in host.context.attempts


def test_it_is_killed_by_the_next_daemon_too(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    key = host.key(job_id)
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    host.boot()
    host.context.attempts[key], host.context.running[key] = Alive(key), FOREVER
    host.settle()
    assert host.context.attempts == {}


@pytest.mark.parametrize("seen", [Alive, lambda key: Waiting(key, "Priority")])
def test_what_the_store_does_not_know_is_left_alone(host: Host, seen: type[Alive]) -> None:
    """A store that was restored from a backup may be older than an attempt that rightly runs."""
    job_id = host.submit()
    host.settle()
    for key in (host.key(job_id, 2), host.key("99")):
        host.context.attempts[key], host.context.running[key] = seen(key), FOREVER
    host.settle()
    assert [number for _, number in host.context.signals if number == SIGKILL] == []
    assert {host.key(job_id, 2), host.key("99")} < set(host.context.attempts)
