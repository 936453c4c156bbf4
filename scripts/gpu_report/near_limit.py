"""A language model of GPT-2 size compared with a hand-written loop, two frameworks and the hardware limit.

The hand-written loop is plain PyTorch with fused attention, fused AdamW, ``torch.compile``, bf16
autocast, TF32 and pinned memory.  All loops train the same model on the same batches, in turns on one
device.  Model FLOPs utilisation (MFU) follows the PaLM paper (arXiv:2204.02311, appendix B):
tokens/s * (6N + 12LHQT) / peak.  The peak is a bf16 matrix product measured in the same run.
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.support import interleave
from bench.support.lockstep import MissingPackage, Setup, TrainingProcess, TrainingResult, start_trainings
from bench.support.result import CannotMeasure
from bench.support.stats import paired_ratio
from jobs.contract import STDLIB, AttemptSpec, TraceSummary
from scripts.gpu_report.context import CannotMeasureHere, Context, against_target, output_of
from scripts.gpu_report.forked_jobs import Job, preload
from scripts.gpu_report.report import Finding, measured, not_run

TITLE: Final = "a 124 M parameter model compared with other loops and the hardware limit"

AIM_RATIO: Final = 1.0
AIM_MFU: Final = 0.45

OURS: Final = "ours"
BY_HAND: Final = "hand-written loop"
LOOPS: Final = {
    OURS: "bench.rivals.loops:train_with_runner",
    BY_HAND: "bench.rivals.loops:train_by_hand",
    "Hugging Face Trainer": "bench.rivals.loop_huggingface:huggingface",
    "Lightning": "bench.rivals.loop_lightning:lightning",
}

REAL: Final[Mapping[str, Any]] = {"batch_size": 16, "context": 1024, "layers": 17, "heads": 12, "width": 768}
"""The blocks of GPT-2 small; five more replace the parameters of its vocabulary."""
TINY: Final[Mapping[str, Any]] = {"batch_size": 2, "context": 16, "layers": 1, "heads": 2, "width": 16}

PROFILE: Final = "cuda-hopper"


@dataclass(frozen=True, slots=True)
class Effort:
    """Steps before the first turn, steps of a turn, timed turns and warm-up turns."""

    settling: int
    steps: int
    turns: int
    warmups: int


REAL_EFFORT: Final = Effort(settling=6, steps=12, turns=10, warmups=1)
TINY_EFFORT: Final = Effort(settling=2, steps=2, turns=2, warmups=1)


def run(context: Context) -> Iterator[Finding]:
    """Yield the peak, the comparison with each loop, MFU, the top kernels, and other batch sizes."""
    peak = matrix_product(context)
    preload()
    yield measured("bf16 matrix product", str(peak["summary"]), **peak)
    effort = context.sized(REAL_EFFORT, TINY_EFFORT)
    spec = spec_of(context, effort)
    seconds, ended = _turns(context, spec, effort)
    if isinstance(ended[OURS], MissingPackage):
        raise CannotMeasureHere(f"{ended[OURS].package} is not installed")
    yield from _compared(context, spec, seconds, ended)
    yield _utilisation(context, spec, seconds[OURS], peak)
    for what, finding in (("profile", _profiled), ("alone", partial(_alone, peak=peak))):
        try:
            yield finding(context)
        except CannotMeasureHere as error:
            yield not_run(what, str(error))


def spec_of(
    context: Context,
    effort: Effort,
    profile: str = PROFILE,
    changes: Mapping[str, Any] | None = None,
    **plan: Any,
) -> AttemptSpec:
    """Return the spec of all loops: no dropout, no evaluation, no periodic checkpoint."""
    steps = effort.settling + (effort.warmups + effort.turns) * effort.steps + 1
    known = {
        "kind": "causal_lm",
        "data": STDLIB,
        **context.sized({}, {"include": ("a*.py",)}),
        **context.sized(REAL, TINY),
    }
    workload = {**known, "dropout": 0.0, "steps": steps, "eval_every": None, "log_every": 20, **plan}
    return context.spec(workload, context.profile(profile, **(changes or {})))


def _turns(
    context: Context, spec: AttemptSpec, effort: Effort
) -> tuple[dict[str, tuple[float, ...]], dict[str, TrainingResult | MissingPackage]]:
    """Return the seconds of a step in each turn, and the end state of each loop."""
    setups = {
        name: Setup(loop, context.folder(f"loop-{number}"), spec, effort.settling, effort.steps)
        for number, (name, loop) in enumerate(LOOPS.items())
    }
    try:
        with start_trainings(setups) as lanes:
            there = {name: lane for name, lane in lanes.items() if isinstance(lane, TrainingProcess)}
            took = interleave.interleave(
                effort.turns, effort.warmups, {name: lane.turn for name, lane in there.items()}
            )
            ended = {
                name: lane.end() if isinstance(lane, TrainingProcess) else lane
                for name, lane in lanes.items()
            }
    except CannotMeasure as error:
        raise CannotMeasureHere(f"{error}; {_logs(setups)}") from error
    return took, ended


def _logs(setups: Mapping[str, Setup]) -> str:
    """Return the last log lines of all loops."""
    summary = []
    for name, setup in setups.items():
        try:
            lines = (setup.directory / "log").read_text(errors="replace").strip().splitlines()[-6:]
        except OSError:
            lines = []
        summary.append(f"{name}: {' / '.join(lines)}")
    return "; ".join(summary)[:3000]


def _compared(
    context: Context,
    spec: AttemptSpec,
    seconds: Mapping[str, tuple[float, ...]],
    ended: Mapping[str, TrainingResult | MissingPackage],
) -> Iterator[Finding]:
    for name, theirs in ended.items():
        if name == OURS:
            continue
        if isinstance(theirs, MissingPackage):
            yield not_run(f"compared with {name}", f"{theirs.package} is not installed")
            continue
        ratio = paired_ratio(seconds[name], seconds[OURS])
        ours = ended[OURS]
        loss = (
            ""
            if isinstance(ours, MissingPackage)
            else f"; held-out loss {ours.loss:.4f} and {theirs.loss:.4f}"
        )
        summary = (
            f"{ratio.value:.3f} x ({ratio.low:.3f}-{ratio.high:.3f}) in tokens/s:"
            f" {_rate(spec, seconds[OURS]):,.0f} and {_rate(spec, seconds[name]):,.0f}{loss}"
        )
        yield against_target(
            context,
            f"compared with {name}",
            summary,
            good=ratio.value >= AIM_RATIO,
            aim=AIM_RATIO,
            ratio=ratio.value,
            low=ratio.low,
            high=ratio.high,
            ours_s=seconds[OURS],
            theirs_s=seconds[name],
        )


def _rate(spec: AttemptSpec, seconds: tuple[float, ...]) -> float:
    """Return tokens/s."""
    return tokens(spec) / statistics.median(seconds)


def tokens(spec: AttemptSpec) -> int:
    plan = spec.workload.model_dump()
    return int(plan["batch_size"] * plan["context"])


def parameters(plan: Mapping[str, Any]) -> int:
    """Return the number of parameters without the position embedding, which is only looked up."""
    width, layers = plan["width"], plan["layers"]
    return int(layers * (12 * width * width + 13 * width) + 256 * width + 2 * width)


def flops_per_token(plan: Mapping[str, Any]) -> int:
    """Return 6N + 12LHQT of the PaLM paper; H * Q is the width."""
    return 6 * parameters(plan) + 12 * int(plan["layers"] * plan["width"] * plan["context"])


def _utilisation(
    context: Context, spec: AttemptSpec, seconds: tuple[float, ...], peak: Mapping[str, Any]
) -> Finding:
    plan = spec.workload.model_dump()
    rate = _rate(spec, seconds)
    mfu = rate * flops_per_token(plan) / peak["flops"]
    summary = (
        f"{mfu:.1%} of {peak['flops'] / 1e12:,.0f} TFLOP/s (measured bf16 peak):"
        f" {rate:,.0f} tokens/s, {statistics.median(seconds) * 1000:.1f} ms a step,"
        f" {tokens(spec):,} tokens a step,"
        f" {parameters(plan) / 1e6:.1f} M parameters, {flops_per_token(plan) / 1e6:,.0f} MFLOP a token"
    )
    return against_target(
        context,
        "model FLOPs utilisation",
        summary,
        good=mfu >= AIM_MFU,
        aim=AIM_MFU,
        mfu=mfu,
        tokens_per_s=rate,
    )


ARMS: Final = (("cuda-ampere", 16), ("cuda-hopper", 16), ("cuda-hopper", 64))
"""Profiles, each with the rows of its batches."""


def _alone(context: Context, peak: Mapping[str, Any]) -> Finding:
    """Return the rate of the trainer by profile and batch size, one after the other."""
    rows = []
    for profile, batch in context.sized(ARMS, (("cuda-ampere", 2),)):
        job = _trained(
            context,
            f"alone-{profile}-{batch}",
            profile,
            {"memory_log": "interval", "memory_log_every": 10},
            batch_size=batch,
        )
        rates = [float(line["items_per_s"]) for line in job.metrics() if "items_per_s" in line]
        rate, effective = statistics.median(rates[1:]), job.effective()
        rows.append(
            {
                "arm": f"{profile}, {batch} rows",
                "tokens/s": rate,
                "MFU": f"{rate * flops_per_token(job.spec.workload.model_dump()) / peak['flops']:.1%}",
                "peak GiB": max(
                    (line["memory_peak"] / 2**30 for line in job.metrics() if "memory_peak" in line),
                    default=None,
                ),
                "graphs": effective.get("compile_graphs"),
                "fell back": "; ".join(effective.get("fallbacks", [])) or "nothing",
            }
        )
    summary = "; ".join(f"{row['arm']}: {row['tokens/s']:,.0f} tokens/s, MFU {row['MFU']}" for row in rows)
    return measured("trainer alone, by profile and batch size", summary, rows=rows)


def _profiled(context: Context) -> Finding:
    """Return the kernels that take the most time, by the trainer's own trace."""
    job = _trained(context, "profiled", PROFILE, {"trace": {"steps": (4, 8)}})
    found = TraceSummary.model_validate_json(job.paths.trace_summary.read_bytes())
    steps = found.last_step - found.first_step
    rows = [
        {
            "kernel": each.name[:110],
            "ms a step": (each.cpu_s if context.rehearsal else each.device_s) * 1000 / steps,
            "calls a step": each.calls / steps,
        }
        for each in found.operators
    ]
    summary = f"{steps} steps of {found.seconds / steps * 1000:.1f} ms with the profiler"
    return measured("top kernels of a step", summary, rows=rows)


def _trained(context: Context, name: str, profile: str, changes: Mapping[str, Any], **plan: Any) -> Job:
    """Return a training of a few dozen steps, once it has ended.

    Raises:
        CannotMeasureHere: it fails.
    """
    spec = spec_of(
        context, context.sized(REAL_EFFORT, TINY_EFFORT), profile, changes, steps=40, log_every=5, **plan
    )
    job = Job(context.folder(name), spec)
    job.finish(context.left_s)
    return job


def matrix_product(context: Context) -> dict[str, Any]:
    """Return what ``near_limit_worker`` finds in a process of its own.

    Raises:
        CannotMeasureHere: it fails.
    """
    size = context.sized(8192, 64)
    argv = [sys.executable, "-m", "scripts.gpu_report.near_limit_worker", context.accelerator, str(size)]
    found: dict[str, Any] = json.loads(output_of(argv, context.left_s).strip().splitlines()[-1])
    return found
