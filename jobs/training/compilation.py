"""Compilation of the model with torch.compile, verified by counting graphs.

``module.compile()`` returns before anything is compiled.  It may compile nothing without an error,
and it fails only at the first call.  The dry run that follows is therefore observed.  If it produces
no graphs, the model runs uncompiled and the report gives the reason.  A mode with CUDA graphs is verified
only if none was skipped: the compiler does that without an error, too.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from gpu_job_runner.profiled import skipped_cuda_graphs
from jobs.training.device import Device
from jobs.training.switches import Switches


def compile_model(model: nn.Module, switches: Switches, device: Device, rehearse: Callable[[], None]) -> None:
    """Compile a model and do the dry run, or leave the model uncompiled and record the reason."""
    profile = switches.profile
    counters.clear()
    model.compile(mode=profile.compile, dynamic=profile.compile_dynamic, fullgraph=profile.compile_fullgraph)
    try:
        rehearse()
    except TorchDynamoException as error:
        _back_to_eager(switches, _reason(error))
        rehearse()
        return
    device.graphs = int(counters["stats"]["unique_graphs"])
    if not device.graphs:
        _back_to_eager(switches, "torch.compile made no graph of this model")
        return
    skipped = skipped_cuda_graphs()
    note = f"{device.graphs} graph(s)" + (f", {skipped} of them without CUDA graphs" if skipped else "")
    switches.applied("compile", verified=not skipped, note=note)
    for name in ("compile_dynamic", "compile_fullgraph", "compile_cache"):
        switches.applied(name, note=f"{device.graphs} graph(s)")


def _back_to_eager(switches: Switches, why: str) -> None:
    torch.compiler.set_stance("force_eager")
    switches.fell_back("compile", "off", why)


def _reason(error: TorchDynamoException) -> str:
    """Return the first two lines of the error: the part of torch that raised it, and its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
