"""The daemon allocates the device to jobs: clean before and after, foreign processes reported."""

import time
from collections.abc import Iterator
from typing import Any, Final

from scripts.gpu_report.context import CannotMeasureHere, Context
from scripts.gpu_report.daemon import Daemon, daemon, foreign_process
from scripts.gpu_report.report import Finding, checked, measured, not_run

TITLE: Final = "allocation of the device by a daemon"

JOB_GIB: Final = 3.0
FOREIGN_GIB: Final = 2.0
SLACK_GIB: Final = 0.25
"""Memory that may stay in use beyond the baseline; the daemon uses the same tolerance."""

GIB: Final = 1024**3


def run(context: Context) -> Iterator[Finding]:
    """Yield the state of the device before, during and after jobs."""
    with daemon(context) as server:
        began = time.monotonic()
        free = server.reaches("free")
        base = _used(free)
        yield checked(
            "the device is free at the start",
            f"after {time.monotonic() - began:.1f} s; baseline memory {base:.2f} GiB",
            good=True,
            used_gib=base,
        )
        for step in (_allocated, _shared, _crashed):
            try:
                yield from step(server, base)
            except CannotMeasureHere as error:
                yield checked(f"{step.__name__.strip('_')}", str(error), good=False)
                return


def _used(device: dict[str, Any]) -> float:
    return (device["used_bytes"] or 0) / GIB


def _allocated(server: Daemon, base: float) -> Iterator[Finding]:
    """Yield whether a job holds the device while it runs and leaves it clean."""
    job = server.submit_holder("has-it", JOB_GIB)
    pid = server.pid_of_holder(job)
    server.report_memory(used_gib=base + JOB_GIB, pids={pid: JOB_GIB})
    held = server.until(
        lambda: _holds(server, base + JOB_GIB - SLACK_GIB), "the memory of the job is visible", 15
    )
    has = [each["id"] for each in held["jobs"]]
    quiet = "foreign" not in server.event_text(job)
    summary = (
        f"state {held['state']}, job {', '.join(has)}, {_used(held):.2f} GiB in use;"
        f" {'no' if quiet else 'a'} foreign process reported"
    )
    yield checked(
        "the device is allocated to a job",
        summary,
        good=held["state"] == "allocated" and has == [job] and quiet,
    )
    began = time.monotonic()
    server.report_memory(used_gib=base, pids={})
    server.cancel(job)
    free = server.reaches("free")
    left = _used(free) - base
    yield checked(
        "the device is clean after the job",
        f"{time.monotonic() - began:.2f} s from cancel to free; {left:+.3f} GiB compared with the baseline",
        good=left <= SLACK_GIB,
        seconds=time.monotonic() - began,
        left_gib=left,
    )


def _holds(server: Daemon, gib: float) -> dict[str, Any] | None:
    device = server.device()
    return device if _used(device) >= gib else None


def _shared(server: Daemon, base: float) -> Iterator[Finding]:
    """Yield whether a foreign process is detected during a job and after it."""
    job = server.submit_holder("shares-its-device", JOB_GIB)
    own = server.pid_of_holder(job)
    server.report_memory(used_gib=base + JOB_GIB, pids={own: JOB_GIB})
    with foreign_process(server, FOREIGN_GIB) as pid:
        began = time.monotonic()
        server.report_memory(used_gib=base + JOB_GIB + FOREIGN_GIB, pids={own: JOB_GIB, pid: FOREIGN_GIB})
        words = f"also used by a foreign process (pid {pid}"
        try:
            server.until(lambda: words in server.event_text(job), "the alarm is raised", 20)
        except CannotMeasureHere:
            listed = server.device()
            yield checked(
                "a foreign process raises an alarm while a job holds the device",
                f"no alarm within 20 s; device: {listed}; events: {server.event_text(job)[-500:]}",
                good=False,
            )
        else:
            alarm = next(line for line in server.event_text(job).splitlines() if words in line)
            yield checked(
                "a foreign process raises an alarm while a job holds the device",
                f"after {time.monotonic() - began:.1f} s: {alarm}",
                good=True,
                seconds=time.monotonic() - began,
            )
        server.report_memory(used_gib=base + FOREIGN_GIB, pids={pid: FOREIGN_GIB})
        server.cancel(job)
        foreign = server.reaches("foreign", "dirty", "quarantined")
        waits = server.submit_holder("waits", 0.5)
        why = server.until(lambda: _why(server, waits, pid), "runner why names the process", 15)
        yield checked(
            "the device is not allocated while a foreign process uses it",
            f"state {foreign['state']}: {foreign['reason']}; runner why of a pending job: {why}",
            good=f"pid {pid}" in foreign["reason"],
        )
    server.report_memory(used_gib=base, pids={})
    began = time.monotonic()
    server.pid_of_holder(waits)
    yield measured(
        "the device is allocated again after the foreign process has ended",
        f"the pending job runs {time.monotonic() - began:.1f} s later",
    )
    server.cancel(waits)
    server.reaches("free")


def _why(server: Daemon, job: str, pid: int) -> str | None:
    summary = str(server.client.why(job)["why"])
    return summary if f"pid {pid}" in summary else None


def _crashed(server: Daemon, base: float) -> Iterator[Finding]:
    """Yield whether a job that crashes with memory allocated leaves the device clean or quarantined."""
    if server.context.rehearsal:
        yield not_run("a job that crashes with memory allocated", "needs a real device")
        return
    job = server.submit_holder("crashes", 8.0, "abort")
    server.pid_of_holder(job)
    server.until(lambda: server.job(job)["state"] in {"finished", "held"}, "it has crashed", 30)
    began = time.monotonic()
    after = server.reaches("free", "quarantined")
    yield checked(
        "a job that crashes with memory allocated",
        f"{server.job(job)['why']}; device {after['state']} after {time.monotonic() - began:.1f} s,"
        f" {_used(after) - base:+.3f} GiB compared with the baseline",
        good=after["state"] == "quarantined" or _used(after) - base <= SLACK_GIB,
    )
