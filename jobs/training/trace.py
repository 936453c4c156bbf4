"""A trace of some steps by ``torch.profiler``: the whole of it, and a table of what took the most time.

The profiler only observes: no random number is drawn, and no operation changes.  A trace that cannot be
made or written costs a warning, and the training goes on.
"""

import gzip
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import torch

from jobs.checkpoint import durable as files
from jobs.contract import OperatorTime, RunPaths, Trace, TraceSummary, dump
from jobs.training.report import say, warn

if TYPE_CHECKING:
    from torch.profiler import profile

SHOWN: Final = 10
"""Operators in the table."""


class StepTrace:
    """Records the requested steps, as far as this attempt does them."""

    def __init__(self, wanted: Trace | None, paths: RunPaths, device: torch.device) -> None:
        self._first, self._last = (0, 0) if wanted is None else wanted.steps
        self._paths = paths
        self._device = device
        self._profiler: profile | None = None
        self._began = (0, 0.0)  # step and time

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Stop a recording that an error has cut short; nothing of it is kept."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
            why = f"step {self._last} is not reached" if error is None else str(error)
            warn(f"the trace ended early, and is not kept: {why}")

    def before(self, step: int) -> None:
        """Begin the recording if this is its first step, or the first one of this attempt within it."""
        if self._profiler is None and self._first <= step < self._last:
            self._start()
            self._began = step, time.monotonic()

    def after(self, step: int) -> None:
        """End the recording if the last step is done, and write it."""
        if self._profiler is not None and step >= self._last:
            profiler, self._profiler = self._profiler, None
            self._wait()
            seconds = time.monotonic() - self._began[1]
            profiler.stop()
            self._write(profiler, seconds)

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - takes time to load

        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities, acc_events=True)
        try:
            self._wait()
            profiler.start()
        except RuntimeError as error:
            self._first = self._last  # once is enough
            warn(f"profile.trace: torch.profiler does not start, and nothing is recorded: {error}")
            return
        self._profiler = profiler

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _write(self, profiler: "profile", seconds: float) -> None:
        file = self._paths.trace
        try:
            _export(profiler, file)
        except (OSError, RuntimeError) as error:
            file.unlink(missing_ok=True)
            warn(f"{file.name} cannot be written ({error}); going on without it")
        found = TraceSummary(
            first_step=self._began[0],
            last_step=self._last,
            seconds=seconds,
            file=file.name if file.exists() else "",
            operators=_slowest(profiler),
        )
        _keep(self._paths.trace_summary, found)
        for line in _table(found):
            say(line)


def _export(profiler: "profile", file: Path) -> None:
    """Write the whole trace, compressed; torch would do so by way of the directory for temporary files."""
    plain = file.with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        with plain.open("rb") as events, gzip.open(file, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(events, packed)
    finally:
        plain.unlink(missing_ok=True)


def _slowest(profiler: "profile") -> tuple[OperatorTime, ...]:
    """Return the operators and kernels with the most time of their own, the slowest first."""
    every = [
        OperatorTime(
            name=each.key[:300],
            calls=each.count,
            cpu_s=max(0.0, each.self_cpu_time_total / 1e6),
            device_s=max(0.0, each.self_device_time_total / 1e6),
        )
        for each in profiler.key_averages()
    ]
    on_device = any(each.device_s for each in every)
    every.sort(key=lambda each: each.device_s if on_device else each.cpu_s, reverse=True)
    return tuple(every[:SHOWN])


def _keep(path: Path, found: TraceSummary) -> None:
    try:
        files.replace(path, dump(found).encode())
    except OSError as error:
        warn(f"{path.name} cannot be written ({error.strerror}); going on without it")


def _table(found: TraceSummary) -> list[str]:
    """Return the lines of the log about a trace."""
    steps = found.last_step - found.first_step
    took = f"{found.seconds / steps * 1000:.1f} ms a step"
    head = f"trace of steps {found.first_step} to {found.last_step}: {took}"
    lines = [f"{head}, in {found.file}" if found.file else head]
    for each in found.operators:
        times = f"cpu {each.cpu_s * 1000:.1f} ms, device {each.device_s * 1000:.1f} ms"
        lines.append(f"trace: {each.name}: {each.calls} calls, {times}")
    return lines
