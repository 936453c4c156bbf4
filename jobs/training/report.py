"""Reports of the trainer to the host: log lines, heartbeat, metrics, effective settings and result.

A report that cannot be written does not end the training.  On a full disk the trainer logs one
warning and continues.  The disk blocks of the result are reserved at the start for the same reason.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpu_job_runner.tracking import Place, Trackers
from jobs.checkpoint import durable as files
from jobs.contract import AttemptSpec, Cause, Effective, Phase, Rejected, Result, RunPaths, Status, dump
from jobs.training.phases import Phases, StepTime, Throughput

HEARTBEAT_S = 0.5
"""Shortest time between two heartbeats of one phase."""

RESULT_BYTES = 16 * 1024

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_TRACKED_ENDS = {Cause.COMPLETED: "FINISHED", Cause.STOPPED: "SCHEDULED"}
"""Names of the ends of attempts in MLflow; all others have failed."""


def say(text: str) -> None:
    """Write one line to the log, unbuffered, so that a SIGKILL does not lose it."""
    _write_line(1, text)


def warn(text: str) -> None:
    """Write one warning line to the log."""
    _write_line(2, f"warning: {text}")


def complain(text: str) -> None:
    """Write the line that gives the reason why the program ends."""
    _write_line(2, f"error: {text}")


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, or None if the kernel does not report it."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


@dataclass(slots=True)
class Progress:
    """The progress of the attempt: the mutable state from which every report is made."""

    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    checkpoint_step: int | None = None
    save_every_s: float | None = None
    save_stall_s: float | None = None
    evaluation: tuple[float, float] | None = None  # seconds that the one that runs takes, and still takes
    resumed_from: int | None = None
    rejected: tuple[Rejected, ...] = ()
    weights_sha256: str | None = None
    stopped_early: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def end(self) -> str:
        """Describe the end of a training that has succeeded."""
        if self.stopped_early:
            return f"stopped early at step {self.step}: {self.stopped_early}"
        return f"finished at step {self.step}"


class Reporter:
    """Writes the attempt's report files and keeps them up to date."""

    def __init__(self, paths: RunPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = Progress()
        self.throughput = Throughput()
        self.memory: Callable[[], int | None] = resident_bytes
        self.paths = paths
        self._clock = clock
        self._phases = Phases(clock)
        self._beat_at = -math.inf
        self._deaf: set[str] = set()
        self._warned: set[str] = set()
        self._reserved: files.ReservedFile | None = None
        self._trackers: Trackers | None = None

    def track(self, spec: AttemptSpec) -> None:
        """Track the metrics where the spec wants it, from ``begin_tracking`` on."""
        if spec.track is None:
            return
        paths = self.paths
        place = Place(
            spec.job_id,
            spec.attempt,
            paths.lineage_dir,
            paths.attempt_dir,
            paths.home,
            spec.resume_step is not None,
        )
        params = {**spec.workload.model_dump(mode="json"), "seed": spec.seed, "profile": spec.profile.name}
        self._trackers = Trackers(spec.track.model_dump(), place, params)

    def begin_tracking(self, step: int) -> None:
        """Tell the trackers the step that this attempt begins after."""
        if self._trackers is not None:
            self._trackers.begin(step)

    def begin(self) -> None:
        """Reserve the disk blocks of the result and write the first heartbeat."""
        with self._tolerating("result.json"):
            self._reserved = files.ReservedFile(self.paths.result, RESULT_BYTES)
        self.beat()

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """Enter a phase for the duration of the context, with a heartbeat at its start and its end."""
        with self._phases.within(phase):
            self.beat()
            yield
        self.beat()

    def stepped(
        self, step: int, loss: float | None, took: StepTime | None, gradient_norm: float | None = None
    ) -> None:
        """Record a finished step, and write a heartbeat if ``HEARTBEAT_S`` have passed since the last.

        Loss, norm and time are None if the CPU did not wait for the device.
        """
        self.progress.step = step
        if loss is not None:
            self.progress.loss, self.progress.gradient_norm = loss, gradient_norm
        if took is not None:
            self.throughput.add(took)
        if self._clock() - self._beat_at >= HEARTBEAT_S:
            self.beat()

    def evaluated(self, share: float, passed_s: float) -> None:
        """Record which share of an evaluation is over, and how long that has taken."""
        if share > 0:
            self.progress.evaluation = (passed_s / share, passed_s * (1 / share - 1))
        if self._clock() - self._beat_at >= HEARTBEAT_S:
            self.beat()

    def beat(self) -> None:
        """Write the heartbeat."""
        self._beat_at = self._clock()
        with self._tolerating("status.json"):
            files.replace(self.paths.status, dump(self._status()).encode())

    def log_step(self, learning_rate: float, item: str) -> None:
        """Report the newest step in one line of the log and one line of ``metrics.jsonl``."""
        now, throughput = self.progress, self.throughput
        rate = throughput.items_per_s or 0.0
        left = throughput.seconds_for((now.total_steps or now.step) - now.step) or 0.0
        where = f"step {now.step}/{now.total_steps}"
        norm = "" if now.gradient_norm is None else f"gradient norm {now.gradient_norm:.3g}  "
        say(f"{where}  loss {now.loss:.4f}  {norm}{rate:,.0f} {item}s/s  eta {_clock_text(left)}")
        self.metric(
            step=now.step,
            loss=now.loss,
            gradient_norm=now.gradient_norm,
            learning_rate=learning_rate,
            items_per_s=round(rate, 1),
            data_wait=round(throughput.data_wait or 0.0, 4),
            **{f"part_{name}": share for name, share in throughput.parts.items()},
        )

    def metric(self, **values: float | None) -> None:
        """Append one line to ``metrics.jsonl``."""
        row = {"time": round(time.time(), 3), **{key: finite(v) for key, v in values.items()}}
        with self._tolerating("metrics.jsonl"), self.paths.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._trackers is not None:
            self._trackers.add(row)

    def effective(self, effective: Effective) -> None:
        """Write ``effective.json``, and log a warning for each setting that fell back since the last time."""
        for fallback in effective.fallbacks:
            if fallback not in self._warned:
                warn(fallback)
        self._warned.update(effective.fallbacks)
        with self._tolerating("effective.json"):
            files.replace(self.paths.effective, dump(effective).encode())

    def finish(self, cause: Cause, message: str) -> None:
        """Write the last heartbeat, then the result."""
        phase = None if cause is Cause.COMPLETED else self._phases.failed or self._phases.current
        with self._phases.within(Phase.DRAIN):
            self.beat()
        content = dump(self._result(cause, message, phase)).encode()
        with self._tolerating("result.json"):
            if self._reserved:
                self._reserved.publish(content)
            else:
                files.replace(self.paths.result, content)
        if self._trackers is not None:
            self._trackers.end(_TRACKED_ENDS.get(cause, "FAILED"), self.progress.step)

    def _status(self) -> Status:
        now, phase = self.progress, self._phases.current
        eval_s, eval_left_s = (now.evaluation if phase is Phase.EVAL else None) or (None, None)
        return Status(
            phase=phase,
            eval_s=eval_s,
            eval_left_s=eval_left_s,
            time=time.time(),
            step=now.step,
            total_steps=now.total_steps,
            items_per_s=self.throughput.items_per_s,
            step_s=self.throughput.seconds_for(1),
            items=self.throughput.items,
            data_wait=self.throughput.data_wait,
            parts=self.throughput.parts,
            loss=finite(now.loss),
            gradient_norm=finite(now.gradient_norm),
            memory_bytes=self.memory(),
            checkpoint_step=now.checkpoint_step,
            save_every_s=now.save_every_s,
            save_stall_s=now.save_stall_s,
            resumed_from=now.resumed_from,
        )

    def _result(self, cause: Cause, message: str, phase: Phase | None) -> Result:
        now = self.progress
        seconds = {f"seconds_{name}": spent for name, spent in self._phases.seconds().items()}
        return Result(
            cause=cause,
            step=now.step,
            message=message[:4000],
            phase=phase,
            time=time.time(),
            resumed_from=now.resumed_from,
            rejected=now.rejected[:20],
            weights_sha256=now.weights_sha256,
            metrics={key: value for key, value in (now.metrics | seconds).items() if math.isfinite(value)},
        )

    @contextmanager
    def _tolerating(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if name not in self._deaf:
                warn(f"{name} cannot be written ({error.strerror}); going on without it")
            self._deaf.add(name)


def finite(value: float | None) -> float | None:
    """Return the value if it is finite, else None: JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _write_line(descriptor: int, text: str) -> None:
    line = text.replace("\n", " ").encode(errors="backslashreplace") + b"\n"
    try:
        os.write(descriptor, line)
    except OSError:  # the log's disk is full or its reader has exited; the report files remain
        return
