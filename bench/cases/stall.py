"""The stall of a training by its checkpoints: one every fifty steps, written in two ways.

There are two figures, because either can be small while the other is large: the time for which the training
thread waits for a save, and the slowdown of all fifty steps compared with no save, which includes the cost
of the background writer.  A turn begins and ends half-way between two saves, so that a
background write is over before the next training has its turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.support import interleave
from bench.support.lockstep import MissingPackage, Setup, TrainingProcess, Turn, start_trainings
from bench.support.result import Aim, CannotMeasure, Line, Result, Series, in_milliseconds
from bench.support.scratch import Scratch
from jobs.contract import STDLIB, AttemptSpec, CheckpointPlan, Profile
from jobs.contract.plans.causal_lm import CausalLm

BENCH: Final = "stall"
AIM_PERCENT: Final = 2.0
EVERY: Final = 50  # steps between saves

NEVER: Final = f"{EVERY} steps without"
BACKGROUND: Final = f"{EVERY} steps with a save, in the background"
AT_ONCE: Final = f"{EVERY} steps with a save, waited for"


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the stall and the slowdown of training with both ways of saving."""
    effort, every = scratch.effort, max(2, int(EVERY * scratch.effort.turn_share))
    with start_trainings(make_setups(scratch, every, effort.warmups + effort.stalls)) as processes:
        there = {name: _require(process) for name, process in processes.items()}
        interleave.interleave(
            effort.stalls, effort.warmups, {name: process.turn for name, process in there.items()}
        )
        turns = {name: process.turns[effort.warmups :] for name, process in there.items()}
        saved = _checkpoint_size(there[BACKGROUND])
    for name, way in ((BACKGROUND, "in the background"), (AT_ONCE, "waited for")):
        aim = Aim(AIM_PERCENT, "p50") if name == BACKGROUND else None
        yield Result(
            BENCH, Series(f"training stands, save {way}", "%", stall_percent(turns[name])), None, aim, saved
        )
        yield Result(BENCH, _wall(name, turns), _wall(NEVER, turns), paired=True)
        yield Result(BENCH, _busy(name, turns), _busy(NEVER, turns), paired=True)


def _wall(name: str, turns: Mapping[str, Sequence[Turn]]) -> Series:
    return in_milliseconds(name, tuple(turn.seconds for turn in turns[name]))


def _busy(name: str, turns: Mapping[str, Sequence[Turn]]) -> Series:
    return in_milliseconds(f"{name}, processor time", tuple(turn.cpu_s for turn in turns[name]))


def make_spec(every: int, turns: int, checkpoint: CheckpointPlan, *, in_background: bool) -> AttemptSpec:
    """Return the spec of a model with 21 MiB of weights and moments, and steps of about 40 ms."""
    plan = CausalLm(
        data=STDLIB,
        include=("[a-c]*.py",),
        steps=every // 2 + turns * every + 1,
        batch_size=8,
        context=32,
        layers=4,
        width=192,
        eval_every=None,
    )
    profile = Profile(optimizer="fused", threads=1, async_save=in_background)
    return AttemptSpec(
        job_id="bench", attempt=1, lineage=1, workload=plan, profile=profile, checkpoint=checkpoint
    )


def make_setups(scratch: Scratch, every: int, turns: int) -> dict[str, Setup]:
    saving = CheckpointPlan(every_steps=every)
    specs = {
        NEVER: make_spec(every, turns, CheckpointPlan(), in_background=True),
        BACKGROUND: make_spec(every, turns, saving, in_background=True),
        AT_ONCE: make_spec(every, turns, saving, in_background=False),
    }
    return {
        name: Setup(
            "bench.rivals.loops:train_with_runner", scratch.directory("stall"), spec, every // 2, every
        )
        for name, spec in specs.items()
    }


def _require(process: TrainingProcess | MissingPackage) -> TrainingProcess:
    if isinstance(process, MissingPackage):
        raise CannotMeasure(f"{process.package} is not installed")
    return process


def stall_percent(turns: Sequence[Turn]) -> tuple[float, ...]:
    """Return the share of each turn for which the training waited for a save, in percent."""
    return tuple(turn.stalled_s / turn.seconds * 100 for turn in turns)


def _checkpoint_size(process: TrainingProcess) -> str:
    """Return the size of a checkpoint as text."""
    sizes = [file.stat().st_size for file in process.setup.directory.glob("lineages/*/step-*/state.pt")]
    return f"{max(sizes) / 2**20:.0f} MiB in a checkpoint"
