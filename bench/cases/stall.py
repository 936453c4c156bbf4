"""How long a training stands because it is saved: one checkpoint every fifty steps, written in two ways.

Two figures, for each can be small while the other is not: the time for which the training thread
waits for a save, and how much slower all fifty steps are than without one, which includes what
the writer takes from them.  A turn begins and ends half-way between two saves, so that a
background write is over before the next training has its turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bench.support import interleave as rounds
from bench.support.lockstep import Lane, Missing, Setup, Turn, side_by_side
from bench.support.result import Aim, CannotMeasure, Line, Result, Series, in_milliseconds
from bench.support.scratch import Room
from jobs.contract import STDLIB, AttemptSpec, CheckpointPlan, Profile
from jobs.contract.plans.causal_lm import CausalLm

BENCH: Final = "stall"
AIM_PERCENT: Final = 2.0
EVERY: Final = 50  # steps from save to save

NEVER: Final = f"{EVERY} steps without"
BACKGROUND: Final = f"{EVERY} steps with a save, in the background"
AT_ONCE: Final = f"{EVERY} steps with a save, waited for"


def measure(room: Room) -> Iterator[Line]:
    """Yield for how long training stands, and how much slower it is, with both ways of saving."""
    effort, every = room.effort, max(2, int(EVERY * room.effort.turn_share))
    with side_by_side(setups(room, every, effort.warmups + effort.stalls)) as work_queue:
        there = {name: _needed(lane) for name, lane in work_queue.items()}
        rounds.interleaved(effort.stalls, effort.warmups, {name: lane.turn for name, lane in there.items()})
        turns = {name: lane.turns[effort.warmups :] for name, lane in there.items()}
        saved = _note(there[BACKGROUND])
    for name, way in ((BACKGROUND, "in the background"), (AT_ONCE, "waited for")):
        aim = Aim(AIM_PERCENT, "p50") if name == BACKGROUND else None
        yield Result(
            BENCH, Series(f"training stands, save {way}", "%", stands(turns[name])), None, aim, saved
        )
        yield Result(BENCH, _wall(name, turns), _wall(NEVER, turns), paired=True)
        yield Result(BENCH, _busy(name, turns), _busy(NEVER, turns), paired=True)


def _wall(name: str, turns: Mapping[str, Sequence[Turn]]) -> Series:
    return in_milliseconds(name, tuple(turn.seconds for turn in turns[name]))


def _busy(name: str, turns: Mapping[str, Sequence[Turn]]) -> Series:
    return in_milliseconds(f"{name}, processor time", tuple(turn.cpu_s for turn in turns[name]))


def spec_of(every: int, turns: int, checkpoint: CheckpointPlan, *, in_background: bool) -> AttemptSpec:
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


def setups(room: Room, every: int, turns: int) -> dict[str, Setup]:
    saving = CheckpointPlan(every_steps=every)
    specs = {
        NEVER: spec_of(every, turns, CheckpointPlan(), in_background=True),
        BACKGROUND: spec_of(every, turns, saving, in_background=True),
        AT_ONCE: spec_of(every, turns, saving, in_background=False),
    }
    return {
        name: Setup("bench.rivals.loops:ours", room.directory("stall"), spec, every // 2, every)
        for name, spec in specs.items()
    }


def _needed(lane: Lane | Missing) -> Lane:
    if isinstance(lane, Missing):
        raise CannotMeasure(f"{lane.package} is not installed")
    return lane


def stands(turns: Sequence[Turn]) -> tuple[float, ...]:
    """Return the share of each turn for which the training waited for a save, in percent."""
    return tuple(turn.stalled_s / turn.seconds * 100 for turn in turns)


def _note(lane: Lane) -> str:
    """Return what was saved."""
    sizes = [file.stat().st_size for file in lane.setup.directory.glob("lineages/*/step-*/state.pt")]
    return f"{max(sizes) / 2**20:.0f} MiB in a checkpoint"
