"""Out of memory: the error is recognised, the micro-batch is halved, and the loss stays the same.

A rehearsal trains a micro-batch that fits.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scripts.gpu_report.context import CannotMeasureHere, Context
from scripts.gpu_report.data import plan_of
from scripts.gpu_report.forked_jobs import Job, preload
from scripts.gpu_report.machine import nvidia_smi
from scripts.gpu_report.report import Finding, checked, measured, not_run

TITLE: Final = "out of memory"

ROWS: Final = 1024
"""Rows of a step.  The activations take some 250 GiB, more than a current device has."""
STEPS: Final = 4
PLAN: Final[Mapping[str, Any]] = {
    "batch_size": ROWS,
    "context": 512,
    "layers": 12,
    "heads": 12,
    "width": 768,
    "dropout": 0.0,
}
SHARE: Final = 0.25

TOLERANCE: Final = 1e-3
"""Relative tolerance of the loss in bf16; the micro-batch changes the order of sums."""


def run(context: Context) -> Iterator[Finding]:
    """Yield the halvings, the comparison of losses, the memory limit and the fragmentation."""
    preload()
    too_large = _job(context, "too-large", {})
    found = _finished(too_large, context)
    if isinstance(found, str):
        yield checked("a micro-batch that does not fit is halved", found, good=False)
        return
    effective = too_large.effective()
    rows = int(effective["micro_batch"])
    halvings = [line for line in too_large.log().splitlines() if "out of memory with" in line]
    summary = f"{_rows(context)} rows a step, {len(halvings)} halvings, micro-batch {rows} at the end"
    if halvings:
        summary += f"; {halvings[0][:300]}"
    if context.rehearsal or context.tiny:
        yield measured("a micro-batch that does not fit is halved", summary)
    else:
        yield checked(
            "a micro-batch that does not fit is halved", summary, good=bool(halvings), micro_batch=rows
        )
    yield _alike(context, too_large, rows)
    yield from _largest(context)
    yield from _capped(context)
    yield from _fragmentation(context, rows)


def _rows(context: Context) -> int:
    return context.sized(ROWS, 4)


def _job(
    context: Context,
    name: str,
    changes: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    **plan: Any,
) -> Job:
    known = context.sized(dict(PLAN), {"dropout": 0.0})
    workload = plan_of(
        "causal_lm", context, **{**known, "steps": STEPS, "eval_every": None, "log_every": 1, **plan}
    )
    workload["batch_size"] = plan.get("batch_size", _rows(context))
    profile = context.profile("cuda", **{"loader_workers": 0, **changes})
    return Job(context.folder(f"oom-{name}"), context.spec(workload, profile), environ or {})


def _finished(job: Job, context: Context) -> Mapping[str, Any] | str:
    """Return the result of a training, or the reason why it failed."""
    try:
        return job.finish(context.left_s)
    except CannotMeasureHere as error:
        return str(error)


def _losses(job: Job) -> list[float]:
    return [float(line["loss"]) for line in job.metrics() if "items_per_s" in line]


def _alike(context: Context, too_large: Job, rows: int) -> Finding:
    """Return the comparison with a run whose micro-batch fitted from the start."""
    name = "the losses equal those of a run that fitted"
    fitted = _job(context, "fitted", {"micro_batch": rows})
    found = _finished(fitted, context)
    if isinstance(found, str):
        return checked(name, found, good=False)
    ours, theirs = _losses(too_large), _losses(fitted)
    apart = max((abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=False)), default=float("inf"))
    summary = f"maximum relative difference {apart:.1e} over {len(ours)} steps (tolerance {TOLERANCE:g})"
    same = len(ours) == len(theirs) == STEPS and apart <= TOLERANCE
    return checked(
        name, summary, good=same, ours=ours, theirs=theirs, weights=too_large.bits() == fitted.bits()
    )


def _largest(context: Context) -> Iterator[Finding]:
    """Yield what ``micro_batch: auto`` chose, how much memory that took, and whether one size more fits."""
    name = "micro_batch: auto takes the largest part that fits"
    job = _job(context, "auto", {"micro_batch": "auto", "memory_log": "interval", "memory_log_every": 1})
    found = _finished(job, context)
    if isinstance(found, str):
        yield checked(name, found, good=False)
        return
    batch, rows = _rows(context), int(job.effective()["micro_batch"])
    summary = f"{rows} of {batch} rows"
    parts = [size for size in range(rows + 1, batch + 1) if batch % size == 0]
    if context.rehearsal or context.tiny or not parts:
        yield measured(name, summary, micro_batch=rows)
        return
    more = _job(context, "one-more", {"micro_batch": parts[0]})
    end = _finished(more, context)
    halved = isinstance(end, str) or "out of memory with" in more.log()
    peak = max((int(line["memory_peak"]) for line in job.metrics() if "memory_peak" in line), default=0)
    summary += f", {peak / 2**30:.1f} GiB reserved; {parts[0]} rows {'do not fit' if halved else 'fit, too'}"
    yield checked(name, summary, good=halved, micro_batch=rows, peak=peak, next=parts[0])


def _capped(context: Context) -> Iterator[Finding]:
    """Yield the check that ``memory_fraction`` is respected."""
    name = "memory_fraction 0.25 is respected"
    if context.rehearsal:
        yield not_run(name, "needs a real device")
        return
    job = _job(context, "capped", {"memory_fraction": SHARE, "memory_log": "interval", "memory_log_every": 1})
    found = _finished(job, context)
    if isinstance(found, str):
        yield checked(name, found, good=False)
        return
    peak = max((int(line["memory_peak"]) for line in job.metrics() if "memory_peak" in line), default=0)
    rows = job.effective().get("micro_batch")
    summary = f"peak reserved {peak / 2**30:.1f} GiB with {rows} rows"
    cells = nvidia_smi("memory.total")
    if cells is None:
        yield measured(name, f"{summary}; nvidia-smi is not installed", peak=peak, micro_batch=rows)
        return
    share = peak / (float(cells[0]) * 2**20)
    yield checked(
        name, f"{summary}, {share:.1%} of the memory", good=0 < share <= SHARE, share=share, micro_batch=rows
    )


def _fragmentation(context: Context, rows: int) -> Iterator[Finding]:
    """Yield reserved and allocated memory with both allocators, for batches of several sizes."""
    found = []
    for allocator, words in (("default", ""), ("expandable_segments", "expandable_segments:True")):
        changes = {
            "micro_batch": max(1, rows - rows // 8 - 1),
            "eval_batch": max(1, rows // 3),
            "memory_log": "interval",
            "memory_log_every": 1,
            "allocator": allocator,
        }
        job = _job(
            context, allocator, changes, {"PYTORCH_CUDA_ALLOC_CONF": words}, eval_every=1, eval_batches=1
        )
        end = _finished(job, context)
        if isinstance(end, str):
            yield not_run(f"allocator {allocator}", end)
            continue
        lines = [line for line in job.metrics() if "memory_reserved" in line]
        last = lines[-1]
        found.append(
            {
                "allocator": allocator,
                "allocated MiB": last["memory_allocated"] / 2**20,
                "reserved MiB": last["memory_reserved"] / 2**20,
                "peak reserved MiB": max(line["memory_peak"] for line in lines) / 2**20,
                "switch": job.effective()["switches"].get("allocator", {}).get("verified"),
            }
        )
    summary = "; ".join(
        f"{row['allocator']}: peak {row['peak reserved MiB']:,.0f} MiB reserved" for row in found
    )
    yield measured("fragmentation: uneven last micro-batch, other evaluation batch", summary, rows=found)
