"""Memory and rate of streaming at MobilePoser's scale: 10,000 sequences, and 8 loader processes.

Three ways to read the same rows: one sequence at a time in each process, a buffer for all sequences, and
all of them converted before the first step.  The sequences are made up and as long as one window, so a
sequence has four rows, one for each of four choices of sensors.  The network is small: what is measured
is the feed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.cases.loader_memory import Seen, watch
from bench.support.result import CannotMeasure, Line, NotMeasured, Result, Series
from bench.support.scratch import Scratch
from jobs.contract import AttemptSpec, Profile, RunPaths
from jobs.contract.plans.imu_stream import DEVICE_COMBOS, SYNTHETIC_IMU, ImuStream

BENCH: Final = "stream-scale"
ROWS: Final = 512
WINDOW: Final = 125
HELD_OUT: Final = 0.2
COMBOS: Final = DEVICE_COMBOS[:4]
PASSES: Final = 2  # a buffer is full after the first


@dataclass(frozen=True, slots=True)
class Way:
    """One way to read the sequences."""

    name: str
    switches: dict[str, Any]
    share: float = 1.0  # of the steps; a slow way need not make all of them


def ways(sequences: int) -> tuple[Way, ...]:
    """Return the ways that are compared."""
    return (
        Way("streaming, one sequence in memory", {"stream_buffer": 1}, share=0.2),
        Way(f"streaming, a buffer of {sequences:,}", {"stream_buffer": sequences}),
        Way("not streaming", {"streaming": False}),
    )


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield rate and memory of each way."""
    sequences, loaders = scratch.effort.streamed, scratch.effort.stream_loaders
    for way in ways(sequences):
        plan = make_plan(sequences, loaders, way)
        profile = Profile(optimizer="fused", threads=1, loader_workers=loaders, dry_run=False, **way.switches)
        spec = AttemptSpec(job_id="bench", attempt=1, lineage=1, workload=plan, profile=profile)
        seen = watch(RunPaths(scratch.directory("streamed"), 1, 1), spec)
        name = f"{way.name}, {loaders} loader processes"
        try:
            yield from make_lines(name, seen, plan.batch_size)
        except CannotMeasure as problem:
            yield NotMeasured(BENCH, name, str(problem))


def make_plan(sequences: int, loaders: int, way: Way) -> ImuStream:
    """Return a training over all rows, once to fill the buffers and once with full ones."""
    rows = round(sequences * (1 - HELD_OUT)) * len(COMBOS)
    batch = min(ROWS, max(1, rows // (4 * loaders)))
    return ImuStream(
        module="foot_contact",
        data=SYNTHETIC_IMU,
        synthetic_sequences=sequences,
        synthetic_frames=WINDOW,
        held_out=HELD_OUT,
        device_combos=COMBOS,
        steps=max(2 * loaders, round(way.share * PASSES * rows / batch)),
        batch_size=batch,
        window=WINDOW,
        shards=loaders,
        hidden=16,
        layers=1,
        eval_every=None,
        log_every=10**6,
    )


def make_lines(name: str, seen: Sequence[Seen], rows: int) -> list[Line]:
    """Return the rate of the second half of the steps, of so many rows, and the memory at their end.

    Raises:
        CannotMeasure: nobody looked twice in that half.
    """
    half = [each for each in seen if each.step >= seen[-1].step / 2]
    if not half or half[-1].step == half[0].step:
        raise CannotMeasure("the training was over before anybody had looked twice")
    first, last = half[0], half[-1]
    rate = rows * (last.step - first.step) / (last.at_s - first.at_s)
    most = max((each.held for each in half), key=lambda held: held.distinct)
    note = f"{most.resident:,.0f} MiB if each process counts what it shares"
    return [
        Result(BENCH, Series(f"rate, {name}", "windows/s", (rate,))),
        Result(BENCH, Series(f"memory, {name}", "MiB", (most.distinct,)), note=note),
    ]
