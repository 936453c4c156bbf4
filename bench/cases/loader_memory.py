"""Memory of trainer and loader processes over many epochs, to detect leaks.

A leak shows as a slope.  There are two figures, because forked processes share unmodified pages:
*resident* counts a page in each process that has it, and *distinct* counts it once.  Distinct memory grows
for a while without any leak, because a shared page that is written to becomes two.  Resident memory does
not grow then, and distinct memory never exceeds it.  The training is ``imu_stream``,
whose loaders keep recordings in a buffer, evaluated after each epoch by loader processes of its own.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from bench.support import chart
from bench.support.process import HeldMemory, held_by_tree
from bench.support.result import Aim, CannotMeasure, Line, Result, Series
from bench.support.scratch import Scratch
from bench.support.stats import slope
from jobs.contract import AttemptSpec, Profile, RunPaths
from jobs.contract.plans.imu_stream import ImuStream

BENCH: Final = "loader-memory"
AIM_PERCENT: Final = 1.0
SETTLING: Final = 5
"""In one epoch of so many, buffers fill and allocators find their size; the slope is that of the others."""

STEPS: Final = 150  # in an epoch
ROWS: Final = 64
WINDOW: Final = 50
RECORDINGS: Final = 40
GROUPS: Final = 10  # two of them are held out
COMBOS: Final = 6
LOOK_S: Final = 0.1
LIMIT_S: Final = 900.0

RESIDENT: Final = "resident memory by epoch"
DISTINCT: Final = "distinct memory by epoch"

Look: TypeAlias = tuple[int, HeldMemory]
"""A step, and the memory at that time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Observation of a training at one time."""

    at_s: float
    step: int
    held: HeldMemory


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield resident memory by epoch and its growth, for each number of loader processes."""
    steps = max(4, int(STEPS * scratch.effort.turn_share))
    recordings, epochs = scratch.directory("recordings"), scratch.effort.epochs
    write_recordings(recordings, steps)
    for loaders in scratch.effort.loaders:
        spec = make_spec(recordings, loaders, steps, epochs)
        looks = watch_memory(RunPaths(scratch.directory("loaders"), 1, 1), spec)
        yield from make_lines(loaders, memory_by_epoch(looks, steps, epochs))


def make_lines(loaders: int, memory: Sequence[HeldMemory]) -> Iterator[Line]:
    """Yield the lines for the memory held in each epoch."""
    resident = [each.resident for each in memory]
    distinct = [each.distinct for each in memory]
    processes = f"{loaders} loader processes"
    yield Result(BENCH, Series(f"{RESIDENT}, {processes}", "MiB", tuple(resident)))
    growth = Series(f"its growth over {len(memory)} epochs", "%", (_growth_percent(resident),))
    yield Result(BENCH, growth, aim=Aim(AIM_PERCENT, "p50"), note=_per_epoch(resident))
    yield Result(BENCH, Series(f"{DISTINCT}, {processes}", "MiB", tuple(distinct)), note=_per_epoch(distinct))


def draw(lines: Sequence[Line], title: str, path: Path) -> str:
    """Draw the memory by epoch, and return a message about the outcome."""
    series = [line.ours for line in lines if isinstance(line, Result) and line.ours.unit == "MiB"]
    return chart.save(chart.epochs({each.label: each.values for each in series}, title), path)


def _settled(memory: Sequence[float]) -> Sequence[float]:
    return memory[len(memory) // SETTLING :]


def _growth_percent(memory: Sequence[float]) -> float:
    settled = _settled(memory)
    return slope(settled).value * len(memory) / median(settled) * 100


def _per_epoch(memory: Sequence[float]) -> str:
    settled = _settled(memory)
    grows = slope(settled)
    low, value, high = (each * 1024 for each in (grows.low, grows.value, grows.high))
    first = len(memory) - len(settled) + 1
    return f"{value:+.0f} KiB per epoch ({low:+.0f} to {high:+.0f}), from epoch {first} on"


def make_spec(recordings: Path, loaders: int, steps: int, epochs: int) -> AttemptSpec:
    plan = ImuStream(
        data=str(recordings),
        steps=steps * epochs,
        batch_size=ROWS,
        window=WINDOW,
        hidden=16,
        layers=1,
        eval_every=steps,
        log_every=steps,
    )
    profile = Profile(optimizer="fused", threads=1, loader_workers=loaders)
    return AttemptSpec(job_id="bench", attempt=1, lineage=1, workload=plan, profile=profile)


def write_recordings(directory: Path, steps: int) -> None:
    """Write synthetic recordings with enough windows for ``steps`` steps."""
    import numpy as np  # part of the trainer's packages

    windows = -(-steps * ROWS * GROUPS // (RECORDINGS * COMBOS * (GROUPS - 2)))
    rows, dice = ["file,subject"], np.random.default_rng(0)
    for number in range(RECORDINGS):
        signal = np.cumsum(dice.normal(0, 0.05, (windows * WINDOW, COMBOS)), axis=0)
        np.save(directory / f"{number}.npy", signal.astype(np.float32))
        rows.append(f"{number}.npy,{number % GROUPS}")
    (directory / "index.csv").write_text("\n".join(rows) + "\n")


def watch_memory(paths: RunPaths, spec: AttemptSpec) -> list[Look]:
    """Train to the end, and return samples of the memory taken meanwhile.

    Raises:
        CannotMeasure: the training failed.
    """
    return [(seen.step, seen.held) for seen in watch(paths, spec)]


def watch(paths: RunPaths, spec: AttemptSpec) -> list[Seen]:
    """Train to the end, and return what was seen of it meanwhile, from its first step on.

    Raises:
        CannotMeasure: the training failed.
    """
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    paths.spec.write_text(spec.model_dump_json())
    argv = [sys.executable, "-m", "jobs", "--root", str(paths.root), "--attempt", "1", "--lineage", "1"]
    with paths.log.open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            looks = list(_looks(process, paths.status))
        finally:
            process.kill()
    if process.returncode:
        raise CannotMeasure(paths.log.read_text(errors="replace").strip().rpartition("\n")[2])
    return looks


def memory_by_epoch(looks: Sequence[Look], steps: int, epochs: int) -> list[HeldMemory]:
    """Return the median of the samples in each epoch; an epoch without samples takes the nearest one.

    Samples after the last step are ignored: the loader processes have ended by then.

    Raises:
        CannotMeasure: there are no samples.
    """
    during = [look for look in looks if look[0] < steps * epochs]
    if not during:
        raise CannotMeasure("the training was over before anybody had looked at its memory")
    return [_within(during, epoch * steps, (epoch + 1) * steps) for epoch in range(epochs)]


def _within(looks: Sequence[Look], first: int, beyond: int) -> HeldMemory:
    seen = [held for step, held in looks if first <= step < beyond]
    if not seen:
        return min(looks, key=lambda look: abs(look[0] - first))[1]
    return HeldMemory(median(each.resident for each in seen), median(each.distinct for each in seen))


def _looks(process: subprocess.Popen[bytes], status: Path) -> Iterator[Seen]:
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        step = _step(status)
        if step:
            yield Seen(time.monotonic(), step, held_by_tree(process.pid))
        time.sleep(LOOK_S)


def _step(status: Path) -> int:
    """Return the step that the training reports, or 0 before its first report."""
    try:
        return int(json.loads(status.read_text())["step"] or 0)
    except FileNotFoundError:
        return 0
