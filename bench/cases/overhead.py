"""The overhead of a trainer: one step of the same training in four loops, in turns.

The runner's trainer does more between two steps than a hand-written loop: it derives every random draw from
the step, checks loss and norm, times its phases, reports progress to the host, and can be killed at any
moment.  The ratio shows the cost of this work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.support import interleave
from bench.support.lockstep import MissingPackage, Setup, TrainingProcess, TrainingResult, start_trainings
from bench.support.result import Aim, Line, NotMeasured, Result, in_milliseconds
from bench.support.scratch import Effort, Scratch
from jobs.contract import STDLIB, AttemptSpec, Profile
from jobs.contract.plans.causal_lm import CausalLm

BENCH: Final = "overhead"
AIM_BY_HAND: Final = 1.02
AIM_FRAMEWORKS: Final = 1.0

OURS: Final = "ours"
BY_HAND: Final = "loop by hand"
LOOPS: Final = {
    OURS: "bench.rivals.loops:train_with_runner",
    BY_HAND: "bench.rivals.loops:train_by_hand",
    "Lightning": "bench.rivals.loop_lightning:lightning",
    "Hugging Face Trainer": "bench.rivals.loop_huggingface:huggingface",
}
SETTLING: Final = 10  # steps before the first turn


@dataclass(frozen=True, slots=True)
class Case:
    """A model size, and the number of its steps in a turn of a fifth of a second."""

    label: str
    rows: int
    context: int
    width: int
    steps: int
    beside_by_hand: Aim | None


CASES: Final = (
    Case("step", rows=16, context=64, width=64, steps=12, beside_by_hand=Aim(AIM_BY_HAND, "ratio")),
    Case("tiny step", rows=4, context=16, width=32, steps=80, beside_by_hand=None),
)


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """One loop: seconds of a step in each turn, and the training result."""

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    ended: TrainingResult


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the runner's step compared with every other loop, in wall-clock and processor time."""
    for case in CASES[-scratch.effort.cases :]:
        repeats = [_time_loops(case, scratch) for _ in range(scratch.effort.repeats)]
        loops = {name: merge_repeats([repeat[name] for repeat in repeats]) for name in LOOPS}
        for name in LOOPS:
            if name != OURS:
                yield from compare(case, name, loops[OURS], loops[name])


def make_spec(case: Case, turns: int, steps: int) -> AttemptSpec:
    """Return the spec of all loops: one thread, no evaluation, no checkpoint before the last step."""
    plan = CausalLm(
        data=STDLIB,
        include=("[a-c]*.py",),
        steps=SETTLING + turns * steps + 1,
        batch_size=case.rows,
        context=case.context,
        width=case.width,
        dropout=0.0,
        eval_every=None,
    )
    profile = Profile(optimizer="fused", threads=1)
    return AttemptSpec(job_id="bench", attempt=1, lineage=1, workload=plan, profile=profile)


def _time_loops(case: Case, scratch: Scratch) -> dict[str, LoopTimes | MissingPackage]:
    effort, steps = scratch.effort, max(1, int(case.steps * scratch.effort.turn_share))
    spec = make_spec(case, effort.warmups + effort.turns, steps)
    setups = {
        name: Setup(loop, scratch.directory(name.replace(" ", "-")), spec, SETTLING, steps)
        for name, loop in LOOPS.items()
    }
    with start_trainings(setups) as processes:
        there = {name: process for name, process in processes.items() if isinstance(process, TrainingProcess)}
        took = interleave.interleave(
            effort.turns, effort.warmups, {name: process.turn for name, process in there.items()}
        )
        return {
            name: LoopTimes(took[name], _cpu(process, effort), process.end())
            if isinstance(process, TrainingProcess)
            else process
            for name, process in processes.items()
        }


def _cpu(process: TrainingProcess, effort: Effort) -> tuple[float, ...]:
    return tuple(turn.cpu_s / process.setup.every for turn in process.turns[effort.warmups :])


def merge_repeats(repeats: Sequence[LoopTimes | MissingPackage]) -> LoopTimes | MissingPackage:
    """Return the turns of all repeats; the repeats have equal results and differ only in memory layout."""
    there = [each for each in repeats if isinstance(each, LoopTimes)]
    if len(there) < len(repeats):
        return next(each for each in repeats if isinstance(each, MissingPackage))
    seconds = tuple(each for repeat in there for each in repeat.seconds)
    cpu_s = tuple(each for repeat in there for each in repeat.cpu_s)
    return LoopTimes(seconds, cpu_s, there[-1].ended)


def compare(
    case: Case, name: str, ours: LoopTimes | MissingPackage, theirs: LoopTimes | MissingPackage
) -> Iterator[Line]:
    """Yield the runner's step and theirs, in wall-clock time and in processor time."""
    label = f"{case.label}, beside {name}"
    if isinstance(ours, MissingPackage):
        yield NotMeasured(BENCH, label, f"{ours.package} is not installed")
        return
    if isinstance(theirs, MissingPackage):
        yield NotMeasured(BENCH, label, f"{theirs.package} is not installed")
        return
    aim = case.beside_by_hand if name == BY_HAND else Aim(AIM_FRAMEWORKS, "ratio")
    wall, busy = case.label, f"{case.label}, processor time"
    yield Result(
        BENCH,
        in_milliseconds(wall, ours.seconds),
        in_milliseconds(name, theirs.seconds),
        aim,
        _compare_weights(ours.ended, theirs.ended),
        paired=True,
    )
    yield Result(BENCH, in_milliseconds(busy, ours.cpu_s), in_milliseconds(name, theirs.cpu_s), paired=True)


def _compare_weights(ours: TrainingResult, theirs: TrainingResult) -> str:
    """Return as text whether both loops end with the same weights."""
    if ours.weights_sha256 == theirs.weights_sha256:
        return f"same weights at the end, bit for bit (held-out loss {ours.loss:.4f})"
    return f"other bits at the end: held-out loss {ours.loss:.6f}, beside {theirs.loss:.6f}"
