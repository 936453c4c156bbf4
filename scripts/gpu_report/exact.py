"""Bitwise resume on the device: each training is killed with SIGKILL at random steps and resumed.

Each workload trains three times: twice without kills, which shows whether the device is deterministic
at all, and once with kills.  The workloads run at the same time, because other work on the device must
not change a result.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jobs.contract import AttemptSpec
from scripts.gpu_report.context import CannotMeasureHere, Context
from scripts.gpu_report.data import KINDS, plan_of
from scripts.gpu_report.forked_jobs import Bits, Job, preload, side_by_side
from scripts.gpu_report.report import Finding, checked, measured, not_run

TITLE: Final = "bitwise resume after SIGKILL"

STEPS: Final = 60
SAVE_EVERY: Final = 5
KILLS: Final = 5
TRAININGS: Final = 5
"""Number of times that a training is begun that is to be killed; see ``_killed``."""
REAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal_lm": {"batch_size": 8, "context": 256, "layers": 4, "dropout": 0.1},
    "imu_stream": {"batch_size": 256, "dropout": 0.2, "bidirectional": True},
    "graph_forecast": {"batch_size": 4},
    "resident_transformer": {"batch_size": 64},
    "pair_classifier": {"batch_size": 8, "layers": 4},
}
"""Smaller than in ``fast``: the bits matter here, not the speed."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One workload under one profile."""

    name: str
    kind: str
    profile: str
    changes: Mapping[str, Any]
    promised: bool
    """True if the profile promises equal bits; otherwise the result is only reported."""


PROMISED: Final = tuple(Arm(kind, kind, "deterministic", {}, promised=True) for kind in KINDS)

BESIDE: Final = (
    Arm("causal_lm, fused optimiser", "causal_lm", "deterministic", {"optimizer": "fused"}, promised=True),
    Arm("causal_lm, bf16", "causal_lm", "deterministic", {"precision": "bf16"}, promised=True),
    Arm("causal_lm, TF32", "causal_lm", "deterministic", {"tf32_matmul": True}, promised=True),
    Arm(
        "causal_lm, compiled",
        "causal_lm",
        "deterministic",
        {"precision": "bf16", "optimizer": "fused", "compile": "default"},
        promised=True,
    ),
    Arm(
        "causal_lm, CUDA graphs",
        "causal_lm",
        "deterministic",
        {"precision": "bf16", "optimizer": "fused", "compile": "reduce-overhead"},
        promised=True,
    ),
    *(Arm(f"{kind}, profile cuda", kind, "cuda", {}, promised=False) for kind in KINDS),
)
"""Switches beside the profile ``deterministic``, and the profile ``cuda``, which promises nothing."""


def run(context: Context) -> Iterator[Finding]:
    """Yield a finding per workload, then one per switch beside the profile ``deterministic``."""
    preload()
    for kind in KINDS:
        plan_of(kind, context)  # create the data set before the processes share it
    for arms in context.sized((PROMISED, BESIDE), (PROMISED[:2], (BESIDE[0], BESIDE[-1]))):
        functions = {arm.name: partial(finding_of, context, arm, _kills(context)) for arm in arms}
        yield from side_by_side(functions, context)


def _kills(context: Context) -> list[int]:
    return sorted(context.draw.sample(range(2, STEPS - 1), context.sized(KILLS, 1)))


def finding_of(context: Context, arm: Arm, kills: list[int]) -> Finding:
    """Return the finding of one arm."""
    name = f"{arm.name}, {len(kills)} kills"
    slug = re.sub("[^a-z0-9]+", "-", arm.name.lower())

    def training(use: str) -> Job:
        return Job(context.folder(f"{slug}-{use}"), spec_of(context, arm))

    reference_job, repeated_job = training("reference"), training("repeated")
    try:
        reference_job.start()
        repeated_job.start()
        killed, hit = _killed(training, kills, context)
        reference = _ended(reference_job, context)
        repeated, resumed = _ended(repeated_job, context), killed.bits()
    except CannotMeasureHere as error:
        return checked(name, str(error), good=False) if arm.promised else not_run(name, str(error))
    same, repeats = resumed == reference, repeated == reference
    summary = (
        f"killed at steps {', '.join(map(str, hit)) or 'none'} of {STEPS}: "
        f"{'equal bits' if same else 'other bits'}"
        f" (weights {reference.weights[:12]} and {resumed.weights[:12]}); "
        f"repeated without kills: {'equal bits' if repeats else 'other bits'}"
    )
    figures = {
        "hit": hit,
        "same": same,
        "repeats": repeats,
        "fallbacks": list(reference_job.effective().get("fallbacks", [])),
    }
    if arm.promised:
        return checked(name, summary, good=same and repeats and bool(hit), **figures)
    return measured(name, f"{summary}; not promised", **figures)


def spec_of(context: Context, arm: Arm) -> AttemptSpec:
    more = context.sized(dict(REAL[arm.kind]), {})
    plan = plan_of(arm.kind, context, **more, steps=STEPS, eval_every=None, log_every=1)
    return context.spec(
        plan, context.profile(arm.profile, **arm.changes), {"every_steps": SAVE_EVERY, "keep": 3}
    )


def _ended(job: Job, context: Context) -> Bits:
    if code := job.wait(context.left_s):
        raise CannotMeasureHere(job.trouble(code))
    return job.bits()


def _killed(training: Callable[[str], Job], kills: list[int], context: Context) -> tuple[Job, list[int]]:
    """Return a finished training that was killed, and the steps at which it was.

    On a busy machine a short training may end before it is seen at its step.  Such a one proves nothing;
    the next is killed at half the steps.
    """
    number, job = 1, training("killed-1")
    while not (hit := _killed_at(job, kills, context)) and number < TRAININGS:
        number += 1
        job = training(f"killed-{number}")
        kills = [max(step // 2, 1) for step in kills]
    return job, hit


def _killed_at(job: Job, kills: list[int], context: Context) -> list[int]:
    """Kill one attempt at each of these steps, then finish; return the steps that were hit."""
    hit: list[int] = []
    for step in kills:
        job.start()
        done = job.kill_at(step, context.left_s)
        if done is None:
            return hit
        hit.append(done)
    job.finish(context.left_s)
    return hit
