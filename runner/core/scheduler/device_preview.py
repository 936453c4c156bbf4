"""Preview of the devices that a job would get if it was submitted now, for a dry run; it decides nothing."""

from dataclasses import dataclass, replace

from runner.core.scheduler.backfill import plan
from runner.core.scheduler.snapshot import DeviceState, Host, PendingJob, Snapshot


@dataclass(frozen=True, slots=True)
class DevicePreview:
    """The devices by UUID; ``waits_for`` says why the job would not start now, empty if it would."""

    devices: tuple[str, ...]
    waits_for: str = ""


def preview_devices(queue: Snapshot, job: PendingJob) -> DevicePreview:
    """Return the devices that a job would get now; where it would wait, those of an idle machine."""
    made = plan(replace(queue, pending=(*queue.pending, job), ready=None))
    for start in made.starts:
        if start.job_id == job.job_id:
            return DevicePreview(start.devices)
    reason = made.pending_reasons.get(job.job_id)
    idle = replace(
        queue, hosts=tuple(map(_idle, queue.hosts)), pending=(job,), ready=None, running=(), maintenance=()
    )
    return DevicePreview(
        next((start.devices for start in plan(idle).starts), ()), reason.why if reason else "the queue"
    )


def _idle(host: Host) -> Host:
    lent = DeviceState.ALLOCATED
    free = (replace(each, state=DeviceState.FREE) if each.state is lent else each for each in host.devices)
    return replace(host, devices=tuple(free))
