"""Train one job undisturbed, then again and again under SIGKILL; print the hashes as JSON.

A program of its own, not a test: it is forked from a process that has loaded torch, and forks every
attempt, so that an attempt costs what the training costs.  Kills come from outside at random times, and from
inside at a random *line* of the modules that write and read checkpoints, which a tracer
counts: the trained code knows nothing of it.  An attempt leads a process group, and its
loader processes die with it, whether the group is killed or the leader alone.  The jobs go
through the ``arms`` in turn, profiles that must not change a bit.
"""

import json
import os
import random
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

from jobs.__main__ import main as train
from jobs.checkpoint import directory as lineage
from jobs.checkpoint import durable as files
from jobs.checkpoint import saver as checkpoint
from jobs.contract import AttemptSpec, RunPaths, checkpoints, read_manifest
from jobs.training import fitting
from jobs.training import loop as trainer
from jobs.training.batches import Batch
from jobs.training.step import Training

PROTOCOL = frozenset(module.__file__ for module in (checkpoint, files, lineage))
"""Where a kill can fall between two halves of a save or of a resume."""

assert trainer.__name__ in sys.modules, "imported here once, so that no attempt has to"


@dataclass(frozen=True, slots=True)
class Hashes:
    """Digests of the files of a finished job: its weights, and the whole state of its last checkpoint."""

    weights: str | None
    state: str | None


@dataclass(slots=True)
class MadeUpRoom:
    """The memory of a device, in rows of a micro-batch."""

    capacity_bytes: int
    seen: int = 0

    def begin(self) -> None:
        self.seen = 0

    def peak_bytes(self) -> int:
        return self.seen

    def limit(self) -> None:
        """Let steps of this process with too large a micro-batch fail as on a device."""
        gradients = Training._gradients

        def limited(training: Training, batch: Batch, step: int) -> torch.Tensor:
            if training.micro_batch > self.capacity_bytes:
                raise torch.OutOfMemoryError("CUDA out of memory: a made-up limit")
            self.seen = max(self.seen, training.micro_batch)
            return gradients(training, batch, step)

        patch.object(Training, "_gradients", limited).start()  # there is no device that could be full
        patch.object(trainer, "room", lambda _device: self).start()


BEGINNING, LATER = MadeUpRoom(5), MadeUpRoom(99)
"""What fits when a lineage begins, and after that."""


class Lines:
    """Counts executed lines of the protocol, in all threads; kills the process group at one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.count = 0
        self._kill_at = kill_at

    def watch(self) -> None:
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename in PROTOCOL else None

    def _line(self, _frame: FrameType, event: str, _value: object) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.count == self._kill_at:
                os.killpg(0, signal.SIGKILL)
        return self._line


class Job:
    """One run directory, and attempts in it as forked processes."""

    def __init__(self, root: Path, spec: dict[str, Any]) -> None:
        self._root = root
        self._spec = spec
        self.attempts = 0

    def start(self, lines: Lines | None = None) -> int:
        """Fork the next attempt and return its pid; it leads its own process group."""
        self.attempts += 1
        paths = RunPaths(self._root, self.attempts, 1)
        paths.attempt_dir.mkdir(parents=True)
        paths.lineage_dir.mkdir(parents=True, exist_ok=True)
        spec = AttemptSpec.model_validate({**self._spec, "attempt": self.attempts})
        paths.spec.write_text(spec.model_dump_json())
        pid = os.fork()
        if pid == 0:
            self._child(paths, lines)
        return pid

    def finish(self) -> Hashes:
        """Run attempts without kills until one says that it has finished."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.start(), 0)[1])
        if code != 0:
            log = RunPaths(self._root, self.attempts, 1).log.read_text()
            raise SystemExit(f"{self._root}: attempt {self.attempts} ended with {code}:\n{log}")
        return self.hashes()

    def hashes(self) -> Hashes:
        paths = RunPaths(self._root, self.attempts, 1)
        last = max(path for _, path in checkpoints(paths.lineage_dir))
        result = json.loads(paths.result.read_text())
        return Hashes(result["weights_sha256"], read_manifest(last).state_sha256)

    def steps_lost(self, code: int) -> int:
        """Return how many steps an attempt did that its lineage does not hold, after it stopped."""
        if code == -signal.SIGTERM:  # so early that nothing listened yet
            return 0
        paths = RunPaths(self._root, self.attempts, 1)
        result = json.loads(paths.result.read_text())
        if (code, result["cause"]) != (75, "stopped"):
            raise SystemExit(f"{self._root}: attempt {self.attempts} ended with {code}: {result}")
        newest = next((step for step, _ in checkpoints(paths.lineage_dir)), 0)
        return max(0, int(result["step"]) - newest)  # less: it stopped before it had resumed

    def _child(self, paths: RunPaths, lines: Lines | None) -> None:
        os.setpgid(0, 0)
        log = os.open(paths.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 70  # of an exception, which is in the log
        if self._spec["profile"].get("micro_batch") == "auto":
            has_begun = (paths.lineage_dir / fitting.FILE).exists()
            (LATER if has_begun else BEGINNING).limit()
        try:
            if lines:
                lines.watch()
            code = train(["--root", str(self._root), "--attempt", str(self.attempts), "--lineage", "1"])
            if lines:
                (paths.attempt_dir / "lines").write_text(str(lines.count))
        finally:
            os._exit(code)


@dataclass(slots=True)
class Torture:
    """The whole experiment: a reference, then chains of attempts that are killed."""

    root: Path
    spec: dict[str, Any]
    arms: list[dict[str, Any]]
    draw: random.Random
    seconds: float = 0.0
    """What a whole job takes: the least that one took, as the machine may have been busy at first."""

    def _job(self, name: str, number: int) -> Job:
        """Return a new job, with the profile whose turn it is."""
        arm = self.arms[number % len(self.arms)]
        return Job(self.root / f"{name}-{number}", {**self.spec, "profile": {**self.spec["profile"], **arm}})

    def measure(self) -> tuple[Hashes, int]:
        """Return the hashes of an undisturbed job, and how many protocol lines it runs; note its seconds."""
        job = self._job("reference", 0)
        began = time.monotonic()
        hashes = job.finish()
        self.seconds = time.monotonic() - began
        counted = self._job("counted", 0)
        os.waitpid(counted.start(Lines()), 0)
        lines = int((self.root / "counted-0/attempts/1/lines").read_text())
        return hashes, lines

    def kill_at_random_times(self, number: int, kills: int) -> tuple[Hashes, int]:
        """Kill a job at up to so many random times; return its end and how many hit it."""
        job, killed = self._job("timed", number), 0
        while killed < kills:
            pid, began = job.start(), time.monotonic()
            if _ends_within(pid, self.draw.uniform(0.02, self.seconds)) and job.attempts == 1:
                self.seconds = min(self.seconds, time.monotonic() - began)
            if _kill(pid, self.draw.choice((os.killpg, os.kill))):
                killed += 1
            else:  # it was faster than the draw
                return job.hashes(), killed
        return job.finish(), killed

    def stop_at_random_times(self, number: int, stops: int) -> tuple[Hashes, int]:
        """Ask a job up to so often to stop; return its end and how many steps the stops lost."""
        job, lost = self._job("stopped", number), 0
        for _ in range(stops):
            pid = job.start()
            _ends_within(pid, self.draw.uniform(0.05, self.seconds / 2))
            os.kill(pid, signal.SIGTERM)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code == 0:
                return job.hashes(), lost
            lost += job.steps_lost(code)
        return job.finish(), lost

    def kill_at_random_lines(self, number: int, lines: int) -> tuple[Hashes, int]:
        """Kill a job at a line of the protocol and its successor at another, then let it finish."""
        job, killed = self._job("lines", number), 0
        for most in (lines, lines // 2):
            pid = job.start(Lines(self.draw.randrange(1, most)))
            status = os.waitpid(pid, 0)[1]
            killed += os.WIFSIGNALED(status)
        return job.finish(), killed


def _ends_within(pid: int, seconds: float) -> bool:
    """Wait so long, or until a child has ended; it is left to be waited for."""
    child = os.pidfd_open(pid)
    try:
        return bool(select.select([child], [], [], seconds)[0])
    finally:
        os.close(child)


def _kill(pid: int, kill: Callable[[int, int], None]) -> bool:
    """Kill a process group or its leader alone; return False if that had finished with success before."""
    try:
        kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # before its setpgid: kill it alone
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return status != 0


def main() -> None:
    warnings.simplefilter("error")
    root, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)  # before any fork; a pool of threads would not survive it
    if "lora" in asked["spec"]["workload"]:
        import_module("jobs.workloads.pair_sequence.workload")
        import_module("peft")  # and transformers: seconds that every attempt would take
    torture = Torture(root, asked["spec"], asked["arms"], random.Random(asked["seed"]))  # noqa: S311 - kill points, no secrets
    reference, lines = torture.measure()
    ends, timed, inside, number = [], 0, 0, 0
    while timed < asked["timed_kills"]:
        number += 1
        hashes, killed = torture.kill_at_random_times(number, min(4, asked["timed_kills"]))
        timed += killed
        ends.append(asdict(hashes))
    while inside < asked["line_kills"]:
        number += 1
        hashes, killed = torture.kill_at_random_lines(number, lines)
        inside += killed
        ends.append(asdict(hashes))
    lost = 0
    for _ in range(asked["stopped_jobs"]):
        number += 1
        hashes, missing = torture.stop_at_random_times(number, 2)
        lost += missing
        ends.append(asdict(hashes))
    report = {
        "reference": asdict(reference),
        "ends": ends,
        "timed_kills": timed,
        "line_kills": inside,
        "steps_lost_by_stops": lost,
        "lines": lines,
        "seconds": torture.seconds,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
