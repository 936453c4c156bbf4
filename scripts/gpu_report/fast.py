"""The five workloads with the profiles ``baseline`` and ``cuda*``, and an ablation of single switches.

The arms of a workload run in turns on one device.  Each first trains the same steps from the same
weights.  The table marks an arm as unequal work if its loss then differs.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jobs.contract import SWITCHES, AttemptSpec, Profile
from runner.files.profiles.conflicts import find_switch_conflicts, find_unused_switches
from runner.files.profiles.load import ProfileSetting
from scripts.gpu_report.context import CannotMeasureHere, Context, against_target
from scripts.gpu_report.data import KINDS, plan_of
from scripts.gpu_report.interleaved import Arm, ArmFailed, TurnRequest, started, working
from scripts.gpu_report.report import Finding, measured, not_run

TITLE: Final = "profiles and switches of the five workloads"

EQUAL_STEPS: Final = 10
"""Steps before the timed turns; the loss after them is compared between arms."""

TURN_S: Final = 0.35
REHEARSED_TURN_S: Final = 0.02
ROUNDS: Final = 3
TOLERANCE: Final = 0.01

START_SHARE: Final = 0.6
"""Share of a workload's time in which its arms must be compiled and ready."""

BASE: Final = "baseline"
MAIN: Final = "cuda"
OTHERS: Final = ("cuda-ampere", "cuda-hopper", "deterministic")

FIXED: Final = {"deterministic": False}
"""The baseline without deterministic kernels, which have a row of their own."""

LEFT_OUT: Final = frozenset(
    {
        "async_save", "memory_log", "memory_log_every", "dry_run", "compile_cache", "threads",
        "memory_fraction", "memory_cleanup_every", "stream_buffer_memory", "loader_prefetch",
        "loader_persistent", "eval_batch",
        "launch_blocking", "allocator",
    }
)  # fmt: skip
"""Switches without an effect on the speed of a step."""

EXTRA: Final[Mapping[str, Mapping[str, Any]]] = {
    "cuda, fp16": {"precision": "fp16"},
    "cuda, fp32 and TF32": {"precision": "tf32"},
    "cuda, fp32 without TF32": {"precision": "fp32", "tf32_matmul": False, "tf32_cudnn": False},
    "cuda, resident": {"placement": "device", "loader_workers": 0},
    "cuda, no loader processes": {"loader_workers": 0},
    "cuda, four loader processes": {"loader_workers": 4},
    "cuda, compiled": {"compile": "default"},
}

PROMISES: Final[Mapping[str, tuple[str, float]]] = {
    "graph_forecast": ("evaluation", 7.0),
    "resident_transformer": ("items", 4.0),
    "causal_lm": ("items", 2.0),
    "imu_stream": ("items", 1.15),
    "pair_classifier": ("items", 2.0),
}
"""Speed-up over ``baseline`` that the five source projects promised, or that this project aims at."""


_NAMES: Final = {"items": "training", "evaluation": "evaluation"}


def run(context: Context) -> Iterator[Finding]:
    """Yield the comparison with the promise and the table of each workload."""
    kinds = context.sized(KINDS, KINDS[-2:])
    for number, kind in enumerate(kinds):
        share_s = context.left_s / (len(kinds) - number)
        try:
            yield from _workload(context, kind, time.monotonic() + share_s)
        except CannotMeasureHere as error:
            yield not_run(kind, str(error))


def _workload(context: Context, kind: str, until: float) -> Iterator[Finding]:
    plan = plan_of(kind, context, dropout=0.0, steps=10**6, eval_every=None, log_every=EQUAL_STEPS)
    if kind == "pair_classifier":
        plan.pop("dropout")
    profiles = arms_of(context, kind)
    specs = {name: context.spec(plan, profile) for name, profile in profiles.items()}
    ready_until = time.monotonic() + START_SHARE * (until - time.monotonic())
    rows = rows_of(context, specs, context.folder(f"fast-{kind}"), ready_until, until)
    yield _promise(context, kind, rows)
    yield measured(f"{kind}, arm by arm", _summary(kind, rows), rows=rows)


def rows_of(
    context: Context, specs: Mapping[str, AttemptSpec], folder: Path, ready_until: float, until: float
) -> list[dict[str, Any]]:
    """Return the measurements of arms that run in turns, those of the first being the base."""
    with started(specs, folder, ready_until) as arms:
        there = working(arms)
        for arm in there:
            _guarded(arm, until, _equal)
        turn_s = context.sized(TURN_S, REHEARSED_TURN_S)
        _rounds([arm for arm in there if not arm.failure], until, turn_s)
        return [_row(arm, there[0]) for arm in arms]


def arms_of(context: Context, kind: str) -> dict[str, Profile]:
    """Return the profiles to measure, by name of the arm."""
    found = {BASE: context.profile(BASE, **FIXED), MAIN: context.profile(MAIN)}
    if context.rehearsal or context.tiny:
        return {**found, "cuda, no loader processes": context.profile(MAIN, loader_workers=0)}
    found |= {name: context.profile(name) for name in OTHERS}
    found |= {name: context.profile(MAIN, **changes) for name, changes in EXTRA.items()}
    slow, fast = found[BASE], found[MAIN]
    for switch in SWITCHES:
        value = getattr(slow, switch)
        if switch in LEFT_OUT or value == getattr(fast, switch):
            continue
        if not _is_idle(switch, slow, fast, kind):
            with suppress(ValueError):
                found[f"{MAIN}, {switch}: {value}"] = context.profile(MAIN, **{switch: value})
    return found


def _is_idle(switch: str, slow: Profile, fast: Profile, kind: str) -> bool:
    """Return whether a workload ignores a switch, or whether it conflicts with the others."""
    flipped = fast.model_copy(update={switch: getattr(slow, switch)})
    settings = {name: ProfileSetting(getattr(flipped, name), rank=1) for name in SWITCHES}
    if any(True for _ in find_switch_conflicts(settings, "cuda")):
        return True
    return switch in find_unused_switches(flipped, kind, "cuda") and switch in find_unused_switches(
        fast, kind, "cuda"
    )


def _guarded(arm: Arm, until: float, turn: Any) -> None:
    try:
        turn(arm, until)
    except ArmFailed as error:
        arm.failure = str(error)


def _equal(arm: Arm, until: float) -> None:
    """Run the steps whose loss is compared, and time half of them to choose the length of a turn."""
    first = EQUAL_STEPS // 2
    arm.turn(TurnRequest("steps", first), until - time.monotonic())
    took = arm.turn(TurnRequest("steps", EQUAL_STEPS - first), until - time.monotonic())
    arm.loss = took.loss
    arm.rates.append((EQUAL_STEPS - first) / took.seconds)


def _rounds(arms: list[Arm], until: float, turn_s: float) -> None:
    """Run the timed turns of all arms, and two evaluations each, while there is time."""
    counts = {arm.name: max(1, min(200, int(arm.rates.pop() * turn_s))) for arm in arms}
    for number in range(ROUNDS):
        for arm in arms:
            if arm.failure or (number and time.monotonic() > until):
                continue
            _guarded(arm, until + 5, lambda arm, limit: _steps(arm, counts[arm.name], limit))
            if number in {0, 2}:
                _guarded(arm, until + 5, _evaluation)


def _steps(arm: Arm, count: int, until: float) -> None:
    if arm.ready is None:
        raise ArmFailed(f"{arm.name}: not ready")
    took = arm.turn(TurnRequest("steps", count), until - time.monotonic())
    arm.rates.append(count * arm.ready.items_per_step / took.seconds)


def _evaluation(arm: Arm, until: float) -> None:
    arm.evaluations_s.append(arm.turn(TurnRequest("evaluations", 1), until - time.monotonic()).seconds)


def _row(arm: Arm, base: Arm) -> dict[str, Any]:
    rate = statistics.median(arm.rates) if arm.rates else None
    ratios = [mine / theirs for mine, theirs in zip(arm.rates, base.rates, strict=False)]
    evaluation = min(arm.evaluations_s, default=None)
    theirs = min(base.evaluations_s, default=None)
    effective = arm.ready.effective if arm.ready else {}
    return {
        "arm": arm.name,
        "items/s": rate,
        "lowest": min(arm.rates, default=None),
        "highest": max(arm.rates, default=None),
        "x baseline": statistics.median(ratios) if ratios else None,
        "evaluation s": evaluation,
        "evaluation x": theirs / evaluation if evaluation and theirs else None,
        f"loss after {EQUAL_STEPS}": arm.loss,
        "work": _work(arm, base),
        "precision": effective.get("precision"),
        "fell back": "; ".join(effective.get("fallbacks", [])) or None,
        "failure": arm.failure or None,
    }


def _work(arm: Arm, base: Arm) -> str:
    if arm.loss is None or base.loss is None:
        return "unknown"
    apart = abs(arm.loss - base.loss) / max(abs(base.loss), 1e-12)
    return "equal" if apart <= TOLERANCE else f"not equal: {apart:.1%}"


def _promise(context: Context, kind: str, rows: list[dict[str, Any]]) -> Finding:
    """Return True if the best CUDA profile reaches the promised speed-up."""
    of, aim = PROMISES[kind]
    key = "evaluation x" if of == "evaluation" else "x baseline"
    named = {row["arm"]: row for row in rows if row["arm"] in {MAIN, *OTHERS} and row[key] is not None}
    if not named:
        return not_run(
            f"{kind}: promised speed-up of {_NAMES[of]}",
            "; ".join(str(row["failure"]) for row in rows if row["failure"]),
        )
    best = max(named.values(), key=lambda row: float(row[key]))
    every = ", ".join(f"{name} {row[key]:.2f} x" for name, row in named.items())
    summary = f"{best[key]:.2f} x baseline with {best['arm']}, promised {aim:g} x ({every})"
    name = f"{kind}: promised speed-up of {_NAMES[of]}"
    return against_target(context, name, summary, good=best[key] >= aim, aim=aim, best=best[key])


def _summary(kind: str, rows: list[dict[str, Any]]) -> str:
    failed = [row["arm"] for row in rows if row["failure"]]
    unequal = [row["arm"] for row in rows if str(row["work"]).startswith("not equal")]
    summary = f"{len(rows)} arms of {kind}"
    if failed:
        summary += f"; failed: {', '.join(failed)}"
    return summary + (f"; not equal work: {', '.join(unequal)}" if unequal else "; equal work")
