"""Retries of the loop: their subject, their time and their clock."""

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog

from runner.base.errors import Refused
from runner.core.job.events import CancelRequested, ReleaseRequested
from runner.core.ports.executor import Gone
from tests.fakes.daemon.attempts import steady
from tests.fakes.engine.executor import Program
from tests.fakes.host.machine import Host

DAY_S = 86400.0


@pytest.fixture
def log_output() -> Iterator[list[MutableMapping[str, Any]]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_a_mistake_that_nobody_expected_is_tried_again_ever_later(host: Host) -> None:
    host.attempt_service.mistake = KeyError("no such\nthing")
    job_id = host.submit()
    host.settle()
    assert host.daemon.why(job_id) == "KeyError: 'no such\\nthing' (tried again after 2s)"
    host.wait(2)
    assert host.daemon.why(job_id).endswith("(tried again after 4s, 2 times in a row)")
    host.wait(3)
    assert host.daemon.why(job_id).endswith("2 times in a row)")
    host.wait(1)
    assert host.daemon.why(job_id).endswith("(tried again after 8s, 3 times in a row)")
    host.attempt_service.mistake = None
    host.wait(8)
    assert (host.state(job_id), host.daemon.why(job_id)) == ("running", "")


def test_a_preparation_that_is_refused_holds_the_job_once_with_the_reason(
    host: Host, log_output: list[MutableMapping[str, Any]]
) -> None:
    host.attempt_service.mistake = Refused("attempts/1: belongs to uid 7; move it away")
    job_id = host.submit()
    host.settle()
    host.wait(DAY_S)
    held = host.row(job_id).job.state
    assert (held.kind, held.why) == ("held", "attempts/1: belongs to uid 7; move it away")  # type: ignore[union-attr]
    assert not [entry for entry in log_output if entry["log_level"] in {"error", "warning"}]
    host.attempt_service.mistake = None
    host.daemon.apply_event(host.row(job_id), ReleaseRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.state(job_id) == "running"


def test_a_launch_that_the_runner_refuses_holds_the_job_and_charges_nothing(host: Host) -> None:
    host.attempt_service.launch_mistake = Refused("lineages/1: belongs to uid 7; move it away")
    job_id = host.submit()
    host.settle()
    job = host.row(job_id).job
    assert (job.state.kind, job.history.charged) == ("held", 0)
    assert job.state.why == "lineages/1: belongs to uid 7; move it away"  # type: ignore[union-attr]
    host.attempt_service.launch_mistake = None
    host.daemon.apply_event(host.row(job_id), ReleaseRequested(host.clock.now(), "ann"))
    host.settle()
    assert (host.state(job_id), host.row(job_id).job.attempts) == ("running", 2)


def test_an_end_that_cannot_be_looked_into_is_looked_into_again(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.attempt_service.mistake = OSError("bad sector")
    host.context.end(host.key(job_id), 0)
    for waited in (2, 4, 8):
        host.settle()
        assert f"OSError: bad sector (tried again after {waited}s" in host.daemon.why(job_id)
        host.wait(waited)
    host.attempt_service.mistake = None
    host.wait(16)
    assert host.state(job_id) == "finished"


def test_an_end_that_cannot_be_decided_is_looked_into_again_and_holds_nobody_up(host: Host) -> None:
    """A fact that the runner itself got wrong is a mistake that nobody expected."""
    job_id, other = host.submit(), host.submit()
    host.settle()
    host.attempt_service.facts[job_id] = {"no.such.fact": True}
    host.context.end(host.key(job_id), 0)
    host.context.end(host.key(other), 0)
    host.settle()
    assert "there is no fact 'no.such.fact'" in host.daemon.why(job_id)
    assert (host.state(job_id), host.state(other)) == ("running", "finished")
    del host.attempt_service.facts[job_id]
    host.wait(2)
    assert host.state(job_id) == "finished"


def test_a_success_takes_the_reason_to_wait_away(host: Host) -> None:
    host.context.programs["train", "1"] = Program(on_signal={15: None})
    job_id = host.submit()
    host.settle()
    host.context.down = True
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.daemon.why(job_id) == "the engine does not answer"
    host.context.down = False
    host.wait(2)
    assert (host.state(job_id), host.daemon.why(job_id)) == ("stopping", "")
    assert [number for _, number in host.context.signals] == [15]


def test_what_is_left_over_is_removed_once_the_engine_answers_again(host: Host) -> None:
    host.context.attempts[host.key("99")] = Gone(host.key("99"), 0)
    host.daemon.observer.observe()
    host.context.down = True
    host.daemon.run_once(0)
    assert host.work_queue.step()
    host.context.down = False
    host.settle()
    assert host.executor.observe() != ()
    host.wait(2)
    assert host.executor.observe() == ()


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_time_of_day_that_jumps_changes_no_retry_of_the_engine(host: Host, jump_s: float) -> None:
    host.attempt_service.engine_down = True
    job_id = host.submit()
    host.settle()
    host.attempt_service.engine_down = False
    host.clock.jump(jump_s)
    host.wait(3)
    assert host.state(job_id) == "running"


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_time_of_day_that_jumps_changes_no_backoff(host: Host, jump_s: float) -> None:
    job_id = host.submit()
    host.settle()
    host.context.end(host.key(job_id), 137)
    host.settle()
    host.clock.jump(jump_s)
    host.wait(4)
    assert (host.state(job_id), host.daemon.why(job_id)) == ("queued", "backoff, 1s left")
    host.wait(1)
    assert host.state(job_id) == "running"


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_time_of_day_that_jumps_changes_no_grace(host: Host, jump_s: float) -> None:
    host.context.programs["train", "1"] = Program(on_signal={15: None})
    job_id = host.submit()
    host.settle()
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    host.clock.jump(jump_s)
    host.wait(29)
    assert host.state(job_id) == "stopping"
    host.wait(1)
    assert host.state(job_id) == "finished"


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_time_of_day_that_jumps_uses_up_no_time_limit(
    host: Host, jump_s: float, *, restarted: bool
) -> None:
    job_id = host.submit(time_limit=timedelta(seconds=100))
    host.settle()
    host.wait(60)
    host.clock.jump(jump_s)
    if restarted:
        host.boot()
    host.wait(30)
    assert host.state(job_id) == "running"
    host.wait(11)
    assert host.row(job_id).job.history.ran == timedelta(seconds=101)
    assert host.state(job_id) == "finished"


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_time_of_day_that_jumps_changes_no_running_time(host: Host, jump_s: float) -> None:
    job_id = host.submit(time_limit=timedelta(seconds=100))
    host.settle()
    host.wait(60)
    host.clock.jump(jump_s)
    host.context.end(host.key(job_id), 1)
    host.settle()
    assert (host.state(job_id), host.row(job_id).job.history.ran) == ("queued", timedelta(seconds=60))


def test_a_grace_ends_although_the_clock_was_set_back_while_no_daemon_ran(host: Host) -> None:
    host.context.programs["train", "1"] = Program(on_signal={15: None})
    job_id = host.submit()
    host.settle()
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    host.clock.jump(-DAY_S)
    host.boot()
    host.wait(host.row(job_id).job.grace.total_seconds() + 1)
    assert host.state(job_id) == "finished"


def test_a_watched_attempt_is_not_stopped_for_its_running_time_when_the_clock_is_set(host: Host) -> None:
    policy = replace(steady(), ceilings=replace(steady().ceilings, wall=timedelta(seconds=100)))
    job_id = host.submit(policy=policy)
    host.settle()
    host.clock.jump(DAY_S)
    host.daemon.watchdog.probe_all()
    host.settle()
    assert host.state(job_id) == "running"


def test_an_attempt_that_vanished_is_missed_though_the_clock_was_set_back(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.clock.jump(-DAY_S)
    host.clock.forward(1)
    del host.context.attempts[host.key(job_id)]
    host.settle()
    assert host.store.attempts(job_id)[0].cause == "vanished"
