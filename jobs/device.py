"""Where the arithmetic happens and under which rules: device, threads, determinism, precision.

One selection, no code paths: ROCm builds of torch answer to the name ``cuda`` too.  Whatever
was asked for and is not to be had falls back to something that is, and is listed.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from jobs.contract import AttemptSpec, Profile
from jobs.failures import DeviceOutOfMemory, InvalidSpec
from jobs.report import resident_bytes


@dataclass(slots=True)
class Device:
    """The device of this attempt, with what really took effect on it."""

    torch_device: torch.device
    name: str
    threads: int
    precision: str = "fp32"
    graphs: int = 0
    fallbacks: list[str] = field(default_factory=list)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        if self.precision == "bf16":
            return torch.amp.autocast(self.torch_device.type, dtype=torch.bfloat16)
        return nullcontext()

    def memory_bytes(self) -> int | None:
        """Return what is allocated on a device, or resident on a CPU."""
        if self.torch_device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.torch_device))
        return resident_bytes()

    def fell_back(self, text: str) -> None:
        self.fallbacks.append(text)


def prepare(spec: AttemptSpec) -> Device:
    """Return the device of a spec after putting the profile's global switches in force.

    Raises:
        InvalidSpec: the accelerator that was granted is not there.
    """
    profile = spec.profile
    if profile.deterministic:
        _be_deterministic()
    threads = profile.threads or max(1, int(spec.cpus))
    torch.set_num_threads(threads)
    device = _select(spec.accelerator, threads)
    _set_precision(device, profile)
    return device


def _select(accelerator: str, threads: int) -> Device:
    if accelerator == "cpu":
        return Device(torch.device("cpu"), _cpu_name(), threads)
    if not torch.cuda.is_available():
        raise InvalidSpec(
            f"accelerator {accelerator}: torch {torch.__version__} sees no device; check the image"
        )
    return Device(torch.device("cuda", 0), torch.cuda.get_device_name(0), threads)


def _be_deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first handle is made
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, finds only bugs of kernels
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _set_precision(device: Device, profile: Profile) -> None:
    on_device = device.torch_device.type == "cuda"
    wanted = profile.precision
    if wanted == "tf32" and not on_device:
        wanted = "fp32"
        device.fell_back("precision tf32: a CPU has none; using fp32")
    if wanted == "bf16" and on_device and not torch.cuda.is_bf16_supported(including_emulation=False):
        wanted = "fp32"
        device.fell_back(f"precision bf16: {device.name} has none; using fp32")
    torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = wanted == "tf32"  # on by default: an fp32 that is not one
    device.precision = wanted


@contextmanager
def out_of_memory_named(device: Device) -> Iterator[None]:
    """Turn the device's out-of-memory error into ours, with the numbers that a reader needs."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        first_line = str(error).splitlines()[0]
        raise DeviceOutOfMemory(f"{device.name}: {first_line} Lower profile.micro_batch") from error


def versions() -> dict[str, str]:
    """Return what the bits of a training depend on, besides the spec."""
    found = {"python": platform.python_version(), "torch": version("torch"), "machine": platform.machine()}
    accelerator = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    return found | {name: text for name, text in accelerator.items() if text}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
