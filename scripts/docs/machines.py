"""The generated part of ``provenance/machines.md``: what ``runner doctor`` says on made-up machines.

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
"""What the stand-in for NVML says in the tests, which run without a GPU, a driver and device nodes."""

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


ABOUT: Final[Mapping[str, tuple[str, str]]] = {
    "healthy": (
        "A healthy machine with NVIDIA GPUs",
        (
            "Two H100, an engine that injects devices by CDI, and nothing to do. Each machine below "
            "differs from this one, and its section shows the lines that do."
        ),
    ),
    "old-driver": (
        "A driver that is too old",
        (
            "The driver is of branch 570, and the torch in the CUDA image needs CUDA 13, hence "
            "580.65.06. A job with a GPU waits, `runner why` says the same, and no attempt is charged. "
            "Update the driver, or [make the lock for CUDA 12.6]"
            "(../docs/operate/gpu-images.md#older-drivers-and-gpus), "
            "whose image the daemon then takes by itself."
        ),
    ),
    "no-driver": (
        "No driver is loaded",
        (
            "The GPUs are on the PCI bus, and `/sys/module/nvidia` does not exist: the driver is not "
            "installed, or it was not built for the kernel that runs after an update (`dkms status`)."
        ),
    ),
    "half-updated-driver": (
        "A driver that was half updated",
        (
            "The kernel module is still the old one, and the library is new, as after an unattended "
            "upgrade. Running jobs go on; NVML does not answer, so devices are not allocated. Restart, "
            "or unload the module when no process uses it."
        ),
    ),
    "no-toolkit": (
        "No NVIDIA Container Toolkit",
        (
            "The engine could inject devices by CDI, and no specification says what they are. The "
            "toolkit makes it: install the package `nvidia-container-toolkit` from [NVIDIA's "
            "repository](https://docs.nvidia.com/datacenter/cloud-native/container-"
            "toolkit/latest/install-guide.html)."
        ),
    ),
    "cdi-missing": (
        "The CDI specification is missing",
        (
            "The toolkit is installed, `gpu_injection` is `cdi`, and `/etc/cdi` is empty. The "
            "specification names the devices and the libraries of the driver; make it again after an "
            "update of the driver or a change of the cards."
        ),
    ),
    "engine-20-10-with-cdi": (
        "Docker 20.10 with gpu_injection: cdi",
        (
            "Debian 12 ships this engine, which knows no CDI. With `gpu_injection: auto`, the default, "
            "the runtime of the toolkit is taken once it is registered; `cdi` rules it out."
        ),
    ),
    "worn": (
        "Worn GPUs and low limits",
        (
            "Three GPUs are on the bus, two answer, and each has something; the host's limits are low "
            "as well. A warning does not keep jobs from running: it says what will fail or become slow."
        ),
    ),
    "amd": (
        "A healthy machine with AMD GPUs",
        (
            "A made-up tree of an MI300X. The user is in no group of the device nodes and needs none: "
            "containers get the numbers of their groups (`GroupAdd`)."
        ),
    ),
    "amd-without-group": (
        "AMD without the group of /dev/kfd",
        (
            "Jobs run as plain processes here (`executor: process`), so their user must be able to open "
            "the nodes. After `usermod --append --groups render USER` a new login is needed, and the "
            "daemon must be started again by it."
        ),
    ),
    "amd-without-driver": (
        "AMD without its driver",
        (
            "The GPU is on the PCI bus, and `amdgpu` is not loaded: it may be on a list of modules that "
            "are not loaded (`/etc/modprobe.d`), or the kernel may be too old for the card."
        ),
    ),
    "stand-in": (
        "This project's test machine",
        (
            "The machine on which the tests run has no GPU. A stand-in for NVML's library says that "
            "there are two; engine and host are real there. The device nodes are missing, which the "
            "real driver would make. The V100 is older than the wheels for CUDA 13: with the lock for "
            "CUDA 12.6 it would be used."
        ),
    ),
}
"""Title and description of each machine."""


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


def reference() -> str:
    """Return a section for each machine."""
    return "\n".join(f"## {ABOUT[name][0]}\n\n{ABOUT[name][1]}\n\n{transcript(name)}" for name in MACHINES)
