"""Training attempts, forked from a process that has imported torch but has no device context.

This saves the import of torch in each attempt.  Call ``preload`` first.  A process with a CUDA context
cannot be forked.
"""

import json
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

from jobs.contract import AttemptSpec, RunPaths, read_manifest
from scripts.gpu_report.context import CannotMeasureHere, Context
from scripts.gpu_report.report import Finding, not_run

CRASHED: Final = 70
POLL_S: Final = 0.002


def preload() -> None:
    """Import what every attempt needs."""
    import torch

    from jobs.training import loop

    if torch.cuda.is_initialized():
        raise AssertionError(f"{loop.__name__}: this process has a CUDA context already and cannot be forked")


@dataclass(frozen=True, slots=True)
class Bits:
    """Digests that equal trainings share: of the final weights and of the last checkpoint."""

    weights: str
    state: str | None


@dataclass(slots=True)
class Job:
    """One training in its own run directory."""

    root: Path
    spec: AttemptSpec
    environ: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 0
    pid: int = 0

    @property
    def paths(self) -> RunPaths:
        """The files of the latest attempt."""
        return RunPaths(self.root, max(self.attempts, 1), 1)

    def start(self) -> None:
        """Fork the next attempt as the leader of a process group."""
        self.attempts += 1
        paths = self.paths
        paths.attempt_dir.mkdir(parents=True)
        paths.lineage_dir.mkdir(parents=True, exist_ok=True)
        paths.home.mkdir(exist_ok=True)
        paths.spec.write_text(self.spec.model_copy(update={"attempt": self.attempts}).model_dump_json())
        self.pid = os.fork()
        if self.pid == 0:
            _child(paths, self.environ)

    def wait(self, limit_s: float) -> int:
        """Return the exit code of the latest attempt.

        Raises:
            CannotMeasureHere: it did not end in time and was killed.
        """
        child = os.pidfd_open(self.pid)
        try:
            ended = bool(select.select([child], [], [], max(limit_s, 0))[0])
        finally:
            os.close(child)
        if not ended:
            self.kill()
            raise CannotMeasureHere(
                f"{self.root.name}: attempt {self.attempts} did not end in {limit_s:.0f} s"
            )
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def finish(self, limit_s: float) -> dict[str, Any]:
        """Run the next attempt to its end, and return its result.

        Raises:
            CannotMeasureHere: it failed; the message is that of the trainer.
        """
        self.start()
        code = self.wait(limit_s)
        if code:
            raise CannotMeasureHere(self.trouble(code))
        return self.result()

    def trouble(self, code: int) -> str:
        """Return the reason why the latest attempt failed."""
        message = self.result().get("message") or self.last_line()
        return f"{self.root.name}: attempt {self.attempts} ended with exit code {code}: {message}"

    def result(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.paths.result.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def effective(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.paths.effective.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def last_line(self) -> str:
        lines = [line for line in self.log().splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def log(self) -> str:
        try:
            return self.paths.log.read_text(errors="replace")
        except OSError:
            return ""

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``."""
        try:
            return [json.loads(line) for line in self.paths.metrics.read_text().splitlines()]
        except (OSError, ValueError):
            return []

    def steps_done(self) -> int:
        """Return the last step in the log of the latest attempt, or 0."""
        return max((step for step, _ in _steps(self.log())), default=0)

    def kill_at(self, step: int, limit_s: float) -> int | None:
        """Kill the latest attempt when its log shows this step; return the step, or None if it has finished.

        Raises:
            CannotMeasureHere: the step was not reached in time, or the attempt failed.
        """
        until = time.monotonic() + limit_s
        while (done := self.steps_done()) < step:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                if code := os.waitstatus_to_exitcode(status):
                    raise CannotMeasureHere(self.trouble(code))
                return None
            if time.monotonic() > until:
                self.kill()
                raise CannotMeasureHere(f"{self.root.name}: step {step} not reached in {limit_s:.0f} s")
            time.sleep(POLL_S)
        return done if self.kill() else None

    def kill(self) -> bool:
        """Kill the latest attempt and its loader processes; return False if it had finished before."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1] != 0

    def bits(self) -> Bits:
        """Return the digests of a finished training."""
        steps = self.spec.workload.steps
        last = self.paths.lineage_dir / f"step-{steps:08d}"
        return Bits(str(self.result().get("weights_sha256")), read_manifest(last).state_sha256)


def _steps(log: str) -> Iterator[tuple[int, str]]:
    """Yield each step line of a log with its number."""
    for line in log.splitlines():
        word, _, rest = line.partition(" ")
        number = rest.partition("/")[0]
        if word == "step" and number.isdigit():
            yield int(number), line


def _child(paths: RunPaths, environ: Mapping[str, str]) -> None:
    os.setpgid(0, 0)
    os.environ.update(environ)
    log = os.open(paths.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = CRASHED  # the log has the traceback
    try:
        from jobs.__main__ import main

        code = main(
            ["--root", str(paths.root), "--attempt", str(paths.attempt), "--lineage", str(paths.lineage)]
        )
    finally:
        os._exit(code)


def side_by_side(functions: Mapping[str, Callable[[], Finding]], context: Context) -> Iterator[Finding]:
    """Run functions, by name, in forked processes at the same time, and yield their findings as they end.

    A process that has not ended at the deadline is killed, and its finding says so.
    """
    processes = multiprocessing.get_context("fork")
    waiting: dict[Connection, tuple[str, ForkProcess]] = {}
    for name, function in functions.items():
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=_send, args=(theirs, function))
        process.start()
        theirs.close()
        waiting[ours] = name, process
    while waiting and (ready := wait(list(waiting), timeout=max(context.left_s, 0.0))):
        for connection in [each for each in waiting if each in ready]:
            yield _received(connection, *waiting.pop(connection))
    for name, process in waiting.values():
        process.kill()
        process.join()
        yield not_run(name, "not done in time")


def _received(connection: Connection, name: str, process: ForkProcess) -> Finding:
    try:
        finding: Finding = connection.recv()
    except EOFError:
        finding = Finding(name, "failed", f"process {process.pid} ended without a result")
    process.join()
    return finding


def _send(connection: Connection, function: Callable[[], Finding]) -> None:
    connection.send(function())
