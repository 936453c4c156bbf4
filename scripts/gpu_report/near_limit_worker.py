"""Measurements of ``near_limit`` in their own process: matmul peak, kernel profile, trainer alone."""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from jobs.checkpoint.directory import Provenance
from jobs.checkpoint.saver import Checkpoints
from jobs.contract import AttemptSpec, RunPaths
from jobs.training.compilation import compile_model
from jobs.training.device import prepare
from jobs.training.report import Reporter
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext, build
from scripts.gpu_report.context import Context
from scripts.gpu_report.near_limit import REAL_EFFORT, TINY_EFFORT, flops_per_token, spec_of, tokens

PRODUCT: Final = 8192
PRODUCTS: Final = 20
PROFILED: Final = 4
TOP: Final = 10


def main() -> None:
    """Run one measurement, and write its result."""
    what, told = sys.argv[1], json.loads(sys.argv[2])
    context = Context(
        bool(told["rehearsal"]), Path(told["directory"]), time.monotonic() + 3600, tiny=bool(told["tiny"])
    )
    found = {"peak": peak, "profile": profiled, "alone": alone}[what](context)
    (context.directory / "found.json").write_text(json.dumps(found))


def peak(context: Context) -> Mapping[str, Any]:
    """Return the median FLOP rate of a large bf16 matrix product on random data."""
    size = context.sized(PRODUCT, 64)
    device = torch.device(context.accelerator)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = [_timed(a, b) for _ in range(PRODUCTS + 3)][3:]
    rates = sorted(2 * size**3 / each for each in seconds)
    flops = statistics.median(rates)
    low, high = rates[0] / 1e12, rates[-1] / 1e12
    summary = f"{flops / 1e12:,.1f} TFLOP/s ({low:,.1f}-{high:,.1f}), {size} x {size} x {size}"
    return {"flops": flops, "summary": summary, "seconds": seconds}


def _timed(a: torch.Tensor, b: torch.Tensor) -> float:
    _settle()
    began = time.perf_counter()
    for _ in range(5):
        a @ b
    _settle()
    return (time.perf_counter() - began) / 5


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def training_of(spec: AttemptSpec, directory: Path) -> Iterator[Training]:
    """Yield a training after compilation and dry run."""
    paths = RunPaths(directory, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    switches = Switches(spec.profile)
    device = prepare(spec, switches)
    plan: Any = spec.workload
    workload = build(plan, BuildContext(spec.seed, switches, paths.home / "cache"))
    training = Training(spec, plan, workload, device, switches)
    reporter = Reporter(paths)
    reporter.begin()
    provenance = Provenance(spec.job_id, 1, 1, 1, {}, {})
    with Checkpoints(paths.lineage_dir, spec.checkpoint, provenance, reporter, in_background=True):
        if spec.profile.compile == "off":
            training.rehearse()
        else:
            compile_model(workload.model, switches, device, training.rehearse)
        training.feed.begin(0)
        yield training


def profiled(context: Context) -> Mapping[str, Any]:
    """Return the kernels with the largest share of a step, and the share of time without any kernel."""
    spec = spec_of(context, context.sized(REAL_EFFORT, TINY_EFFORT))
    with training_of(spec, context.folder("profiled")) as training:
        for step in range(4):
            training.update(step)
        _settle()
        kinds = [ProfilerActivity.CPU, *([] if context.rehearsal else [ProfilerActivity.CUDA])]
        began = time.perf_counter()
        with profile(activities=kinds) as seen:
            for step in range(4, 4 + PROFILED):
                training.update(step)
            _settle()
        wall_s = time.perf_counter() - began
    rows, busy_s = _kernels(seen, rehearsal=context.rehearsal)
    whole = sum(row["ms a step"] for row in rows)
    top = rows[:TOP]
    gaps = 1 - busy_s / wall_s
    summary = (
        f"{PROFILED} steps of {wall_s / PROFILED * 1000:.1f} ms with the profiler; device busy"
        f" {busy_s / wall_s:.1%}; the top {len(top)} kernels take"
        f" {sum(row['ms a step'] for row in top) / max(whole, 1e-9):.0%} of the kernel time"
    )
    return {"summary": summary, "rows": top, "wall_s": wall_s, "busy_s": busy_s, "gaps": gaps}


def _kernels(seen: Any, *, rehearsal: bool) -> tuple[list[dict[str, Any]], float]:
    """Return the time of each kernel, longest first, and the time in which any kernel ran."""
    wanted = "CPU" if rehearsal else "CUDA"
    spans: list[tuple[float, float]] = []
    by_name: dict[str, tuple[float, int]] = {}
    for event in seen.events():
        if str(event.device_type).rpartition(".")[2] != wanted or event.is_user_annotation:
            continue
        span = event.time_range
        spans.append((span.start, span.end))
        total, count = by_name.get(event.name, (0.0, 0))
        by_name[event.name] = (total + span.end - span.start, count + 1)
    rows = [
        {"kernel": name[:110], "ms a step": total / 1000 / PROFILED, "calls a step": count / PROFILED}
        for name, (total, count) in by_name.items()
    ]
    return sorted(rows, key=lambda row: -row["ms a step"]), covered(spans) / 1e6


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


ARMS: Final[tuple[tuple[str, str, int], ...]] = (
    ("cuda-ampere, 16 rows", "cuda-ampere", 16),
    ("cuda-hopper, 16 rows", "cuda-hopper", 16),
    ("cuda-hopper, 64 rows", "cuda-hopper", 64),
)


def alone(context: Context) -> Mapping[str, Any]:
    """Return tokens/s by profile and batch size, one after the other."""
    rows = []
    for name, chosen, batch in context.sized(ARMS, ARMS[:1]):
        spec = spec_of(
            context,
            context.sized(REAL_EFFORT, TINY_EFFORT),
            chosen,
            batch_size=context.sized(batch, 2),
        )
        with training_of(spec, context.folder(name.replace(", ", "-").replace(" ", "-"))) as training:
            rows.append({"arm": name, **_speed(training, spec, context.sized(20, 2))})
            graphs = training.device.graphs
        rows[-1]["graphs"] = graphs
        del training
        torch._dynamo.reset()  # noqa: SLF001 - there is no public name for it
        if not context.rehearsal:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return {"rows": rows}


def _speed(training: Training, spec: AttemptSpec, steps: int) -> dict[str, Any]:
    for step in range(3):
        training.update(step)
    _settle()
    began = time.perf_counter()
    for step in range(3, 3 + steps):
        training.update(step)
    _settle()
    each_s = (time.perf_counter() - began) / steps
    peak_gib = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "ms a step": each_s * 1000,
        "tokens/s": tokens(spec) / each_s,
        "flops a token": flops_per_token(spec.workload.model_dump()),
        "peak GiB": peak_gib,
        "fell back": "; ".join(training.switches.fallbacks) or "nothing",
    }


if __name__ == "__main__":
    main()
