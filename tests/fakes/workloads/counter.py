"""A program that speaks the contract and counts instead of training: it starts in a tenth of a second.

It runs in place of ``python -m jobs`` inside a test image, with the standard library alone, so
it also shows that a program of one's own may speak the contract.  What it is told:

    workload.steps, checkpoint.every_steps, resume_step     by its spec
    PERIOD_S     seconds of one step; a signal ends it early
    STAY_AT      wait after this step for a signal, SIGTERM or SIGUSR1; only when it began at 0
    STAY_RESUMED_AT    the same for what began later
    CRASH_AT     leave with exit code 1 after this step, every time
    ON_TERM      "ignore": SIGTERM means nothing to it; "leave": it goes without saving

Files that it finds below ``/data`` are read and told, secrets only described.  Every start
is noted in ``cache/starts``, and two at a time would be noted as ``busy``.
"""

import fcntl
import hashlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any

asked_to_stop = Event()
asked_to_save = Event()
heard, bell = os.pipe2(os.O_NONBLOCK)


def say(text: str) -> None:
    """Write one line at once: what was said before a SIGKILL is there."""
    os.write(1, f"{text}\n".encode())


def listen() -> None:
    def stop(*_: object) -> None:
        asked_to_stop.set()

    def save(*_: object) -> None:
        asked_to_save.set()

    signal.set_wakeup_fd(bell)
    ignores = os.environ.get("ON_TERM") == "ignore"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores else stop)
    signal.signal(signal.SIGUSR1, save)


def asked() -> bool:
    return asked_to_stop.is_set() or asked_to_save.is_set()


def rest(limit_s: float | None = None) -> None:
    """Wait for a signal, for so long at most."""
    if select.select([heard], [], [], limit_s)[0]:
        os.read(heard, 64)


def publish(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps(content))
    draft.rename(path)


def save(spec: dict[str, Any], lineage: Path, step: int) -> None:
    """Publish a checkpoint as docs/reference/contract.md describes it."""
    target = lineage / f"step-{step:08d}"
    if target.exists():
        return
    draft = lineage / f".tmp-{step}-{spec['attempt']}"
    draft.mkdir(exist_ok=True)
    state = json.dumps({"step": step}).encode()
    (draft / "state.json").write_bytes(state)
    manifest = {
        "contract_version": 1,
        "job_id": spec["job_id"],
        "step": step,
        "lineage": spec["lineage"],
        "attempt": spec["attempt"],
        "revision": spec["revision"],
        "created": time.time(),
        "files": {"state.json": {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}},
    }
    (draft / "manifest.json").write_text(json.dumps(manifest))
    draft.rename(target)


def newest(lineage: Path) -> int:
    found = [json.loads(path.read_text())["step"] for path in lineage.glob("step-*/state.json")]
    return max(found, default=0)


def main() -> int:
    """Count from the newest checkpoint to the last step."""
    listen()
    given = dict(zip(sys.argv[1:-1], sys.argv[2:], strict=True))
    root, attempt, number = Path(given["--root"]), given["--attempt"], given["--lineage"]
    here, lineage = root / "attempts" / attempt, root / "lineages" / number
    with (root / "cache" / "starts").open("a") as starts, (root / "cache" / "lock").open("w") as lock:
        starts.write(f"{attempt}\n")
        starts.flush()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            starts.write("busy\n")
            return 93
        return count(json.loads((here / "spec.json").read_text()), here, lineage)


def count(spec: dict[str, Any], here: Path, lineage: Path) -> int:
    period, crash_at = float(os.environ.get("PERIOD_S", "0.05")), int(os.environ.get("CRASH_AT", "0"))
    step = began = newest(lineage) if spec["resume_step"] is None else spec["resume_step"]
    stay_at = int(os.environ.get("STAY_RESUMED_AT" if began else "STAY_AT", "0"))
    last, every = spec["workload"]["steps"], spec["checkpoint"]["every_steps"] or 10**9
    say(f"begin at {step}")
    for path in sorted(Path("/data").glob("*/*")):
        say(f"{path.read_text().strip()} {path}")
    for path in sorted(Path("/run/secrets").glob("*")):
        seen, size = path.stat(), len(path.read_bytes())
        whose = "mine" if seen.st_uid == os.getuid() else "not mine"
        say(f"secret {path.name}: mode {seen.st_mode & 0o7777:04o}, {whose}, {size} bytes")
    while step < last:
        if asked_to_stop.is_set():
            if os.environ.get("ON_TERM") == "leave":
                return 1
            return leave(spec, here, lineage, step)
        rest(period)
        step += 1
        say(f"step {step}")
        if step % every == 0 or asked_to_save.is_set():
            save(spec, lineage, step)
            asked_to_save.clear()
        status = {"phase": "train", "time": time.time(), "step": step, "total_steps": last}
        publish(here / "status.json", {**status, "resumed_from": began or None})
        while step == stay_at and not asked():
            rest()
        if step == crash_at:
            say("crash")
            return 1
    save(spec, lineage, step)
    publish(here / "result.json", {"cause": "completed", "step": step, "resumed_from": began or None})
    say("end")
    return 0


def leave(spec: dict[str, Any], here: Path, lineage: Path, step: int) -> int:
    if step:
        save(spec, lineage, step)
    publish(here / "result.json", {"cause": "stopped", "step": step, "message": f"saved at step {step}"})
    say("stopped")
    return 75


if __name__ == "__main__":
    sys.exit(main())
