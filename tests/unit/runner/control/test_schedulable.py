"""The machine can allocate what it has, less what is allocated and what is not fit."""

from dataclasses import replace
from datetime import timedelta

from structlog.testing import capture_logs

from runner.control.context import as_started
from runner.control.schedulable import hold_back_array_members
from runner.core.job.events import RevisionApplied
from runner.core.policy.model import Verb
from runner.core.scheduler.snapshot import (
    JobArray,
    Maintenance,
    PendingJob,
    ResourceRequest,
    Snapshot,
)
from tests.fakes.host.machine import Host

OTHER = '{"job": {}}'


def _with(host: Host, **bad: str) -> None:
    host.inventory.bad = {name.replace("_", "-"): why for name, why in bad.items()}


def test_a_maintenance_of_devices_that_there_are_not_is_in_the_log_when_they_are_counted(host: Host) -> None:
    now_s = host.clock.now().timestamp()
    named = frozenset({"GPU-a", "GPU-1", "GPU-99"})
    windows = (Maintenance(now_s, now_s + 60, "fan", devices=named), Maintenance(0, 1, "over", devices=named))
    host.site = replace(host.site, maintenance=windows)
    with capture_logs() as lines:
        host.boot()
        host.submit()
        host.settle()
        counted = len(lines)
        del host.inventory.devices[1:]
        host.submit()
        host.settle()
    told = [line["problem"] for line in lines if line["event"] == "settings.unknown_name"]
    missing = 'queue.maintenance: fan: there is no device "GPU-{}"; see runner gpus'
    assert told == [missing.format(number) for number in ("99", "1", "99")]
    assert counted < len(lines)


def test_jobs_of_a_matrix_start_in_their_order_whoever_is_ready_first() -> None:
    def waiting(job_id: str, sweep: str | None, age_s: float = 1.0) -> PendingJob:
        return PendingJob(
            job_id, "ann", ResourceRequest(), 100 - age_s, array=None if sweep is None else JobArray(sweep)
        )

    jobs = tuple(waiting(*each) for each in (("9", "9"), ("11", "9"), ("12", "8"), ("13", None)))
    queue = Snapshot(100.0, (), jobs)

    def left(*preparing: PendingJob) -> list[str]:
        return [job.job_id for job in hold_back_array_members(queue, preparing).pending]

    everybody = ["9", "11", "12", "13"]
    assert left() == left(waiting("7", None)) == everybody
    assert left(waiting("14", "9"), waiting("10", "9")) == ["9", "12", "13"]
    assert left(waiting("10", "9", age_s=3.0)) == everybody  # that one's image is being built


def test_a_device_that_is_not_fit_is_not_lent(host: Host) -> None:
    _with(host, GPU_a="it no longer answers")
    job = host.submit()
    host.attempt_service.needs_of[job] = ResourceRequest(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    state = host.row(job).job.state
    assert getattr(state, "allocation").devices == ("GPU-b",)  # noqa: B009


def test_a_job_waits_for_a_device_that_is_fit_again(host: Host) -> None:
    _with(host, GPU_a="lost", GPU_b="its driver asks for gpu_reset")
    job = host.submit()
    host.attempt_service.needs_of[job] = ResourceRequest(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    assert host.state(job) == "queued"
    assert host.daemon.why(job) == (
        "waits for 1 NVIDIA GPU: 0 free, GPU-0 quarantined (lost), "
        "GPU-1 quarantined (its driver asks for gpu_reset); start time unknown"
    )
    _with(host)
    host.wait(1)
    assert host.state(job) == "running"


def test_the_unmet_reason_is_worded_as_for_a_pending_job(host: Host) -> None:
    _with(host, GPU_a="lost")
    row = host.row(host.submit())
    lacks = host.daemon.scheduler.unmet
    assert lacks(row, ResourceRequest(1.0, 1024**3)) == ""
    assert lacks(row, ResourceRequest(99.0, 1024**3)) == (
        "never starts: no host has 99 cpus and 1 GiB of memory"
    )


def test_a_running_job_is_seen_in_the_revision_that_its_attempt_began_with(host: Host) -> None:
    job = host.submit()
    host.settle()
    before, now = host.row(job), host.clock.now()
    assert as_started(host.daemon.context, before) is before
    half = timedelta(seconds=30)
    kept = RevisionApplied(now, "ann", 2, OTHER, Verb.KEEP, "why", before.job.history, half, None, 9)
    host.daemon.apply_event(before, kept)
    after = host.row(job)
    assert (after.revision, as_started(host.daemon.context, after).revision) == (OTHER, before.revision)
