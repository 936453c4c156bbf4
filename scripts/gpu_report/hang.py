"""A kernel that never ends: the missing heartbeat stops the attempt, and the next one continues."""

import shutil
import time
from collections.abc import Iterator
from typing import Any, Final

from runner.adapters.gpu.xid import KernelLog
from scripts.gpu_report.context import Context, source_root
from scripts.gpu_report.daemon import Daemon, daemon
from scripts.gpu_report.report import Finding, checked, measured, not_run

TITLE: Final = "a kernel that never ends, and Xids in the kernel log"

SILENCE_S: Final = 4.0

PROGRAM: Final = """\
import os, sys, threading
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from attach import attach

real = sys.argv[1] == "cuda"
if real:
    import torch
    work = torch.zeros(1024, device="cuda")

def save(directory):
    (directory / "state").write_text("x")

rest = threading.Event()
with attach(save) as job:
    for step in job.steps(60):
        rest.wait(0.05)
        if real:
            work += 1
            torch.cuda.synchronize()
        job.report(items=4)
        if step == 30 and os.environ["RUNNER_ATTEMPT"] == "1":
            print("now it hangs", flush=True)
            if real:
                while True:
                    torch.cuda._sleep(2**40)  # minutes each: the device never gets to the end
                    torch.cuda.synchronize()
            rest.wait()
"""


def run(context: Context) -> Iterator[Finding]:
    """Yield the checks of an attempt whose kernel never ends."""
    with daemon(context, silence_floor_s=SILENCE_S) as server:
        server.reaches("free")
        place = server.root / "hanging"
        place.mkdir()
        shutil.copy(source_root() / "gpu_job_runner" / "attach.py", place)
        (place / "main.py").write_text(PROGRAM)
        command = [server.python, str(place / "main.py"), context.accelerator]
        job = server.submit(
            "hangs",
            {"kind": "program", "command": command},
            checkpoint={"every_steps": 10},
            retry={"backoff": "0s", "max_attempts": 3},
        )
        server.until(lambda: "now it hangs" in server.log(job), "the program hangs", 40)
        began = time.monotonic()
        server.until(lambda: server.job(job)["attempt"] == 2, "the second attempt starts", 40)
        second_s = time.monotonic() - began
        ended = server.until(lambda: _ended(server, job), "the job ends", 40)
        story = [
            line for line in server.event_text(job).splitlines() if "attempt 1" in line or "stall" in line
        ]
        summary = (
            f"second attempt {second_s:.1f} s after the hang (silence_floor_s {SILENCE_S:g}),"
            f" {ended['outcome']}:"
            f" {'; '.join(story)[:600]}"
        )
        good = ended["outcome"] == "succeeded" and ended["attempt"] == 2
        yield checked("a hung attempt is stopped and restarted", summary, good=good, seconds=second_s)
        after = server.until(lambda: _looked_at(server), "the device is looked at", 40)
        yield checked(
            "the device afterwards",
            f"{after['state']} {after['reason'] or ''}".strip(),
            good=after["state"] == "free",
        )
    yield _xids(context)


def _ended(server: Daemon, job: str) -> dict[str, Any] | None:
    found = server.job(job)
    return found if found["state"] in {"finished", "held"} else None


def _looked_at(server: Daemon) -> dict[str, Any] | None:
    """Return the device once it was looked at after the job; until then it is dirty for that reason alone."""
    found = server.device()
    is_new = found["state"] == "dirty" and "not looked at" in (found["reason"] or "")
    return found if found["state"] in {"free", "quarantined", "dirty"} and not is_new else None


def _xids(context: Context) -> Finding:
    """Return the Xids in the kernel log."""
    if context.rehearsal:
        return not_run("Xids in the kernel log", "needs a real driver")
    found = KernelLog().xids()
    if found is None:
        return not_run("Xids in the kernel log", "/dev/kmsg is not readable")
    return measured("Xids in the kernel log", ", ".join(str(each.code) for each in found) or "none")
