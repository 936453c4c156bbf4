"""Collective operations over all devices; with one device, a process group of size 1.

The built-in trainer uses one device.  This part proves that NCCL works for programs that use several.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from scripts.gpu_report.context import CannotMeasureHere, Context, environment
from scripts.gpu_report.report import Finding, checked

TITLE: Final = "collective operations"


def run(context: Context) -> Iterator[Finding]:
    """Yield the result of an all-reduce and of a data-parallel training."""
    argv = [
        sys.executable,
        "-m",
        "scripts.gpu_report.several_worker",
        context.accelerator,
        str(context.directory),
    ]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
            timeout=max(context.left_s, 1),
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasureHere("the processes did not end in time") from None
    if done.returncode:
        yield checked("collectives", " / ".join(done.stderr.strip().splitlines()[-3:])[:1000], good=False)
        return
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    world, backend = found["world"], found["backend"]
    yield checked(
        f"all-reduce over {backend}, {world} process(es)",
        f"sum of ranks {found['sum']:g}, expected {found['expected']:g};"
        f" {found['ms']:.2f} ms for {found['MiB']:g} MiB",
        good=found["sum"] == found["expected"],
        **found,
    )
    yield checked(
        f"data-parallel training in {world} process(es) equals one process",
        f"maximum weight difference after 5 steps: {found['apart']:.1e}",
        good=found["apart"] <= found["tolerance"],
        apart=found["apart"],
    )
