"""The blocks of ``provenance/machines.md``: what ``runner doctor`` says on made-up machines.

The tests collect the facts of some of them from made-up trees and from the stand-in for NVML, and compare.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import click

from runner.cli.doctor import PROBLEMS_EXIT, terminal_text
from runner.core.doctor import (
    GIB,
    AmdFacts,
    EngineFacts,
    HostFacts,
    Machine,
    Node,
    NvidiaFacts,
    NvidiaGpu,
    Verdict,
    examine,
)

NODES: Final = tuple(
    Node(f"/dev/nvidia{name}", "root", accessible=True, by_group=True) for name in ("-uvm", "0", "1", "ctl")
)
H100: Final = NvidiaGpu(
    "GPU-0", "NVIDIA H100 80GB HBM3", (9, 0), persistence=True, ecc_errors=0, retired_pages=0
)
NVIDIA: Final = NvidiaFacts(
    2, "580.65.06", None, (13, 0), NODES, (H100, replace(H100, name="GPU-1")), "/usr/bin/nvidia-ctk"
)
KFD: Final = Node("/dev/kfd", "render", accessible=False, by_group=True)
AMD: Final = AmdFacts(
    1,
    driver=True,
    kfd=KFD,
    render=(replace(KFD, path="/dev/dri/renderD128"),),
    gpus=("AMD Instinct MI300X OAM",),
)
ENGINE: Final = EngineFacts(
    None,
    "28.2.2",
    ("runc",),
    cdi_enabled=True,
    cdi_files=("/etc/cdi/nvidia.yaml",),
    cdi_devices=("GPU-h0", "GPU-h1"),
    storage="overlay2",
)
HOST: Final = HostFacts(2, 64 * GIB, 900 * GIB, "/var/lib/runner", None, 65536, 8192, clock_synchronized=True)
DEBIAN_12: Final = EngineFacts(None, "20.10.24+dfsg1", ("runc",), storage="overlay2")
STAND_IN: Final = NvidiaFacts(
    0,
    "580.65.06",
    None,
    (13, 0),
    (),
    (
        NvidiaGpu("GPU-0", "NVIDIA H100 80GB HBM3", (9, 0), persistence=False, ecc_errors=0, retired_pages=0),
        NvidiaGpu("GPU-1", "Tesla V100-SXM2-16GB", (7, 0), persistence=True, ecc_errors=3, retired_pages=2),
    ),
)
"""Values of the stand-in for NVML in the tests, which run without a GPU, a driver and device nodes."""

HEALTHY: Final = Machine(NVIDIA, AmdFacts(), ENGINE, HOST, wanted_cuda=(13, 0))

MACHINES: Final[Mapping[str, Machine]] = {
    "healthy": HEALTHY,
    "old-driver": replace(HEALTHY, nvidia=replace(NVIDIA, driver="570.86.10", cuda=(12, 8))),
    "no-driver": replace(
        HEALTHY,
        nvidia=NvidiaFacts(2, None, "NVML Shared Library Not Found", toolkit="/usr/bin/nvidia-ctk"),
    ),
    "half-updated-driver": replace(
        HEALTHY, nvidia=replace(NVIDIA, nvml_error="Driver/library version mismatch", cuda=None, gpus=())
    ),
    "no-toolkit": replace(
        HEALTHY,
        nvidia=replace(NVIDIA, toolkit=None),
        engine=replace(ENGINE, cdi_files=(), cdi_devices=()),
    ),
    "cdi-missing": replace(HEALTHY, engine=replace(ENGINE, cdi_files=(), cdi_devices=()), injection="cdi"),
    "engine-20-10-with-cdi": replace(HEALTHY, engine=DEBIAN_12, injection="cdi"),
    "worn": replace(
        HEALTHY,
        nvidia=replace(
            NVIDIA,
            on_bus=3,
            gpus=(
                replace(H100, persistence=False, ecc_errors=1, retired_pages=4),
                replace(H100, name="GPU-1", unusable="it is in MIG mode and has no instances"),
            ),
        ),
        host=HostFacts(
            None, 64 * 1024**2, 3 * GIB, "/var/lib/runner", None, 4096, None, clock_synchronized=False
        ),
    ),
    "amd": replace(HEALTHY, nvidia=NvidiaFacts(), amd=AMD),
    "amd-without-group": replace(HEALTHY, nvidia=NvidiaFacts(), amd=AMD, engine=None),
    "amd-without-driver": replace(HEALTHY, nvidia=NvidiaFacts(), amd=AmdFacts(on_bus=1)),
    "stand-in": replace(HEALTHY, nvidia=STAND_IN, engine=DEBIAN_12),
}
"""Made-up machines by name."""


def transcript(name: str) -> str:
    """Return what the command prints on a machine, and its exit code, as Markdown.

    Of a machine that differs from the healthy one, lines that are the same are left out.
    """
    findings = examine(MACHINES[name])
    same = [] if name == "healthy" else examine(HEALTHY)
    shown = [click.unstyle(terminal_text(finding)) for finding in findings if finding not in same]
    left_out = ["..."] if len(shown) < len(findings) else []
    code = PROBLEMS_EXIT if any(each.verdict is Verdict.PROBLEM for each in findings) else 0
    lines = "\n".join([*shown, *left_out])
    return f"```console\n$ runner doctor\n{lines}\n$ echo $?\n{code}\n```\n"
