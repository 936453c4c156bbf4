"""Data-parallel training over all devices: it ends with the bits of one process."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jobs.contract import Parallel, RunPaths, inside_source
from scripts.gpu_report.context import Context, output_of
from scripts.gpu_report.data import plan_of
from scripts.gpu_report.machine import described
from scripts.gpu_report.report import Finding, checked

TITLE: Final = "a training of several processes"

SHARDS: Final = 8
STEPS: Final = 20


def run(context: Context) -> Iterator[Finding]:
    """Yield whether as many processes as there are devices end with the weights of one."""
    devices = 2 if context.rehearsal else int(described(rehearsal=False).get("devices", 1))
    processes = min(1 << devices.bit_length() - 1, SHARDS)
    alone, together = (
        _trained(context, count, context.folder(f"{n}-of-several")) for n, count in ((1, 1), (2, processes))
    )
    yield checked(
        f"the bits of {processes} process(es) are those of one",
        f"weights {alone['weights'][:12]} and {together['weights'][:12]};"
        f" {together['seconds']:.1f} s for {STEPS} steps and the start, beside {alone['seconds']:.1f} s",
        good=alone["weights"] == together["weights"],
        alone=alone,
        together=together,
    )


def _trained(context: Context, processes: int, root: Path) -> dict[str, Any]:
    """Return digest and time of a training of so many processes.

    Raises:
        CannotMeasureHere: it fails, or takes too long.
    """
    plan = plan_of("causal_lm", context, batch_size=SHARDS, steps=STEPS, eval_every=None)
    spec = context.spec(plan, context.profile("deterministic"))
    spec = spec.model_copy(update={"parallel": Parallel(processes=processes, shards=SHARDS)})
    paths, launcher = RunPaths(root, 1, 1), root / "gang.py"
    for each in (paths.attempt_dir, paths.lineage_dir, paths.home):
        each.mkdir(parents=True)
    paths.spec.write_text(spec.model_dump_json())
    launcher.write_text(inside_source("gang"))
    trainer = [sys.executable, "-m", "jobs", "--root", str(root), "--attempt", "1", "--lineage", "1"]
    argv = [sys.executable, str(launcher), str(paths.attempt_dir), str(processes), "--", *trainer]
    began = time.monotonic()
    output_of(argv, context.left_s)
    result = json.loads(paths.result.read_text())
    return {"weights": result["weights_sha256"], "seconds": time.monotonic() - began}
