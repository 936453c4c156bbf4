"""Answer of ``runner why`` about a job in each of its states."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from runner.core.job.events import CancelRequested, HoldRequested
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Stopping, StopReason
from runner.core.ports.store import JobRow
from runner.core.scheduler.snapshot import GIB, ResourceRequest
from runner.server.api.why import reason
from tests.fakes.engine.executor import Program
from tests.fakes.host.machine import ANN, Host, fresh_host

HOUR = timedelta(hours=1)


@pytest.fixture
def host() -> Iterator[Host]:
    with fresh_host() as host:
        yield host


def hand_in(host: Host, gpus: int = 1, limit: timedelta | None = None, *, settle: bool = True) -> str:
    job_id, now = host.store.next_id(), host.clock.now()
    host.attempt_service.needs_of[job_id] = ResourceRequest(0.5, GIB, gpus, "nvidia" if gpus else None)
    job = Job(job_id, Preparing(now), time_limit=limit)
    host.daemon.submit((JobRow(job, "train", ANN, now, 50, RevisionText.of("{}")),), ("submitted",))
    if settle:
        host.settle()
    return job_id


def why(host: Host, job_id: str) -> str:
    return str(reason(host.daemon, host.row(job_id))["why"])


def test_a_job_that_waits_says_for_what_and_when_it_starts(host: Host) -> None:
    hand_in(host, gpus=2, limit=HOUR)
    said = reason(host.daemon, host.row(hand_in(host)))
    assert said == {
        "job": "2",
        "name": "train",
        "state": "queued",
        "outcome": None,
        "why": "waits for 1 NVIDIA GPU: 0 free, 2 allocated, the next until about 01:00; starts about 01:00",
        "starts_at": "2030-01-01T01:00:00.000Z",
        "never": False,
        "until": None,
        "estimated_by": None,
    }


def test_the_source_of_an_estimate_is_named(host: Host) -> None:
    first = hand_in(host, gpus=2)
    waits = hand_in(host, gpus=2)
    assert "no estimate" in why(host, waits)
    assert reason(host.daemon, host.row(waits))["estimated_by"] is None
    host.context.end(host.key(first), 0)
    host.settle()
    waits = hand_in(host, gpus=2)
    assert ", the next until about 00:01 by earlier jobs of its name;" in why(host, waits)
    assert reason(host.daemon, host.row(waits))["estimated_by"] == "name"
    limited = hand_in(host, limit=HOUR)
    assert reason(host.daemon, host.row(limited))["estimated_by"] == "time_limit"


def test_a_job_that_can_never_start_says_so(host: Host) -> None:
    said = reason(host.daemon, host.row(hand_in(host, gpus=3)))
    assert (said["never"], said["starts_at"]) == (True, None)
    assert str(said["why"]).startswith("never starts: no host has 3 NVIDIA GPUs")


def test_a_job_whose_image_is_made_says_that_and_what_stands_against_it(host: Host) -> None:
    host.attempt_service.engine_down = True
    job_id = hand_in(host, settle=False)
    assert why(host, job_id) == "its image is being found or built"
    host.settle()
    assert why(host, job_id) == "its image is being found or built: the engine does not answer"


def test_a_job_that_runs_says_where_and_until_when(host: Host) -> None:
    limited, endless = hand_in(host, limit=HOUR), hand_in(host, gpus=0)
    assert why(host, limited) == "attempt 1 runs on GPU-a; its time limit ends it at 01:00 at the latest"
    assert why(host, endless) == "attempt 1 runs on cpu; nobody knows until when"
    host.context.end(host.key(endless), 0)
    host.settle()
    assert (
        why(host, hand_in(host, gpus=0))
        == "attempt 1 runs on cpu; probably until about 00:01, by earlier jobs of its name"
    )
    assert reason(host.daemon, host.row(limited))["until"] == "2030-01-01T01:00:00.000Z"


def test_an_estimate_from_earlier_jobs_that_has_passed_is_none(host: Host) -> None:
    host.context.end(host.key(hand_in(host, gpus=0)), 0)
    host.settle()
    job_id = hand_in(host, gpus=0)
    host.clock.forward(600)
    outlasted = "nobody knows until when: it has outlasted what earlier jobs suggest"
    assert why(host, job_id) == f"attempt 1 runs on cpu; {outlasted}"
    assert reason(host.daemon, host.row(job_id))["until"] is None


def test_a_job_that_is_being_started_says_what_is_in_the_way(host: Host) -> None:
    host.context.down = True
    job_id = hand_in(host, limit=HOUR)
    until = "probably until about 01:00, by its time limit"
    said = f"attempt 1 is being started on GPU-a; {until}: the engine does not answer"
    assert why(host, job_id) == said


def test_a_job_that_leaves_says_who_asked_and_by_when_it_is_gone(host: Host) -> None:
    job_id = hand_in(host)
    host.context.running[host.key(job_id)] = Program(on_signal={15: None})
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert why(host, job_id) == (
        "attempt 1 on GPU-a was asked to stop (cancelled by ann); it is gone by about 00:00"
    )
    entry = host.daemon.tracked_jobs[job_id]
    state = entry.row.job.state
    assert isinstance(state, Stopping)
    for by, words in (("9", "(preemption for job 9)"), (None, "(preemption)")):
        changed = replace(state, reason=StopReason.PREEMPTION, by=by)
        row = replace(entry.row, job=replace(entry.row.job, state=changed))
        assert words in str(reason(host.daemon, row)["why"])


def test_a_held_job_says_what_can_be_done(host: Host) -> None:
    job_id = hand_in(host)
    host.attempt_service.facts[job_id] = {"cause": "disk_full"}
    host.context.end(host.key(job_id), 1)
    host.settle()
    assert why(host, job_id).startswith("held by its policy: ")
    assert why(host, job_id).endswith("; runner release lets it go on, runner cancel ends it")
    other = hand_in(host, gpus=3)
    host.daemon.apply_event(host.row(other), HoldRequested(host.clock.now(), "ann"))
    assert why(host, other).startswith("held by ann; ")


def test_a_job_that_has_ended_says_how(host: Host) -> None:
    done, cancelled = hand_in(host), hand_in(host, gpus=3)
    host.context.end(host.key(done), 0)
    host.settle()
    host.daemon.apply_event(host.row(cancelled), CancelRequested(host.clock.now(), "ann"))
    assert why(host, done) == "succeeded: completed"
    assert why(host, cancelled) == "cancelled by ann"
    outcomes = [reason(host.daemon, host.row(each))["outcome"] for each in (done, cancelled)]
    assert outcomes == ["succeeded", "cancelled"]


def test_what_brought_a_job_back_into_the_queue_is_said_too(host: Host) -> None:
    job_id = hand_in(host)
    host.attempt_service.steps[job_id] = 40
    host.context.end(host.key(job_id), 137)
    host.settle()
    assert why(host, job_id).startswith("backoff, 5s left (before that: resume from step 40: ")
