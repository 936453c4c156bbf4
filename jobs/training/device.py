"""Selection of the device, and its settings: threads, determinism and precision.

ROCm builds of torch also use the name ``cuda``, so AMD and NVIDIA devices share one code path.
A requested setting that is not available falls back to an available one and is listed.
"""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from gpu_job_runner.profiled import has_expandable_segments
from jobs.contract import AttemptSpec, thread_count
from jobs.training.failures import DeviceOutOfMemory, InvalidSpec
from jobs.training.launcher import local_rank
from jobs.training.report import resident_bytes
from jobs.training.switches import Switches

FP16_CAPABILITY = (7, 0)
"""The first with tensor cores for fp16 (Volta).  The wheels for CUDA 13 begin at 7.5, those for CUDA 12.6
below; on a GPU that the wheels have no code for nothing gets so far."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class Device:
    """The device of this attempt, with the settings in force on it."""

    torch_device: torch.device
    name: str
    threads: int
    precision: str = "fp32"
    graphs: int = 0
    hardware: str = ""
    """Memory and compute capability of a GPU, as text."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        dtype = _DTYPES.get(self.precision)
        return torch.amp.autocast(self.torch_device.type, dtype=dtype) if dtype else nullcontext()

    @property
    def compute_dtype(self) -> torch.dtype:
        """The result type of matrix products in a forward pass."""
        return _DTYPES.get(self.precision, torch.float32)

    def memory_bytes(self) -> int | None:
        """Return the bytes allocated on a GPU, or resident in the memory of the process on a CPU."""
        if self.torch_device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.torch_device))
        return resident_bytes()


def prepare(spec: AttemptSpec, switches: Switches) -> Device:
    """Return the device of a spec after applying the profile's global switches.

    Raises:
        InvalidSpec: The granted accelerator is not available.
    """
    profile = switches.profile
    if profile.deterministic:
        _be_deterministic(compiled=profile.compile != "off")
    in_force = torch.are_deterministic_algorithms_enabled()
    switches.applied("deterministic", verified=in_force or not profile.deterministic)
    threads = thread_count(profile, spec.cpus, spec.parallel.cpu_shares)
    torch.set_num_threads(threads)
    switches.applied("threads", threads, verified=torch.get_num_threads() == threads)
    device = _select(spec.accelerator, threads, local_rank())
    _set_precision(device, switches)
    _verify_precision(device, switches)
    _set_cudnn(device, switches)
    _set_process(device, switches, spec.device_bytes)
    return device


def _select(accelerator: str, threads: int, index: int) -> Device:
    if accelerator == "cpu":
        return Device(torch.device("cpu"), _cpu_name(), threads)
    if not torch.cuda.is_available():
        raise InvalidSpec(
            f"accelerator {accelerator}: torch {torch.__version__} sees no device; check the image"
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise InvalidSpec(f"accelerator {accelerator}: rank {index} has no device; torch sees {count}")
    torch.cuda.set_device(index)
    found = torch.cuda.get_device_properties(index)
    hardware = f"{found.total_memory / 2**30:.1f} GiB, compute capability {found.major}.{found.minor}"
    return Device(torch.device("cuda", index), found.name, threads, hardware=hardware)


def _be_deterministic(*, compiled: bool) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read with the first cuBLAS handle
    if compiled:
        torch.use_deterministic_algorithms(mode=True)
    else:  # the same mode, without loading the compiler to configure it as well
        torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and only reveals kernel bugs
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def _set_precision(device: Device, switches: Switches) -> None:
    wanted = switches.profile.precision
    device.precision, why = _available(wanted, device)
    if why:
        switches.fell_back("precision", device.precision, why)
    else:
        switches.applied("precision", device.precision)
    has_tf32 = device.torch_device.type == "cuda" and torch.cuda.get_device_capability(
        device.torch_device
    ) >= (8, 0)
    for name in ("tf32_matmul", "tf32_cudnn"):
        asked = getattr(switches.profile, name) or wanted == "tf32"
        if asked and not has_tf32:
            switches.fell_back(name, value=False, why=f"{device.name} has no TF32")
        else:
            switches.applied(name, asked)
    matmul, cudnn = (switches.report()[name].applied == "true" for name in ("tf32_matmul", "tf32_cudnn"))
    torch.set_float32_matmul_precision("high" if matmul else "highest")
    torch.backends.cudnn.allow_tf32 = cudnn  # on by default, which reduces fp32 convolutions to TF32


def _verify_precision(device: Device, switches: Switches) -> None:
    """Verify the result type of a product under autocast, and read the settings back."""
    one = torch.ones(1, 1, device=device.torch_device)
    with device.autocast():
        seen = (one @ one).dtype == device.compute_dtype
    note = switches.report()["precision"].note
    switches.applied("precision", device.precision, verified=seen, note=note)
    in_force = {
        "tf32_matmul": torch.get_float32_matmul_precision() == "high",
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
    }
    for name, value in in_force.items():
        switch = switches.report()[name]
        wanted = switch.applied == "true"
        switches.applied(name, wanted, verified=value == wanted, note=switch.note)


def _available(wanted: str, device: Device) -> tuple[str, str]:
    """Return the precision to use, and the reason if it is not the requested one."""
    if device.torch_device.type == "cpu":
        if wanted in ("auto", "tf32"):
            return "fp32", "a CPU has none of the faster ones natively"
        return wanted, ""
    capability = torch.cuda.get_device_capability(device.torch_device)
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    best = "bf16" if has_bf16 else "fp16" if capability >= FP16_CAPABILITY else "fp32"
    if wanted == "auto":
        return best, f"the best that {device.name} has natively"
    if (wanted == "bf16" and not has_bf16) or (wanted == "tf32" and capability < (8, 0)):
        return "fp32", f"{device.name} has no {wanted}"
    return wanted, ""


def _set_cudnn(device: Device, switches: Switches) -> None:
    wanted = switches.profile.cudnn_benchmark
    if wanted and device.torch_device.type != "cuda":
        switches.fell_back("cudnn_benchmark", value=False, why="a CPU has no cuDNN")
        return
    torch.backends.cudnn.benchmark = wanted
    switches.applied("cudnn_benchmark", verified=torch.backends.cudnn.benchmark == wanted)


def _set_process(device: Device, switches: Switches, part_bytes: int | None) -> None:
    """Record the switches set by the runner's environment, and limit the memory used on the device."""
    on_device, profile = device.torch_device.type == "cuda", switches.profile
    if not on_device:
        return
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    switches.applied("launch_blocking", blocking, verified=blocking == profile.launch_blocking)
    grows = has_expandable_segments()
    allocator = "expandable_segments" if grows else "default"
    verified = None if grows is None else allocator == profile.allocator
    switches.applied("allocator", allocator, verified=verified, note="as the allocator says")
    fraction = _fraction(profile.memory_fraction, part_bytes, device.torch_device)
    if fraction is not None:
        torch.cuda.set_per_process_memory_fraction(fraction, device.torch_device)
        in_force = torch.cuda.get_per_process_memory_fraction(device.torch_device)
        switches.applied("memory_fraction", fraction, verified=math.isclose(in_force, fraction))


def _fraction(asked: float | None, part_bytes: int | None, device: torch.device) -> float | None:
    """Return the share of the device's memory that torch may allocate, or None for all of it.

    ``part_bytes`` is the job's part of a shared device.  If the job exceeds it, only this job runs out of
    memory.  The limit does not include the CUDA context or the allocations of other libraries.
    """
    if part_bytes is None:
        return asked
    share = part_bytes / torch.cuda.get_device_properties(device).total_memory
    return min(share, 1.0 if asked is None else asked)


OUT_OF_MEMORY: Final = (
    "DefaultCPUAllocator: can't allocate",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "HIP error: out of memory",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "miopenStatusAllocFailed",
)
"""Texts of out-of-memory errors that do not come from torch's own device allocator.

Torch has no exception class for these errors.  They are ``RuntimeError`` or ``AcceleratorError``, like any
other device error, and differ from those only in their text.
"""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a device, a library on it or the CPU's allocator ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


@contextmanager
def out_of_memory_named(device: Device) -> Iterator[None]:
    """Convert an out-of-memory error that was not handled by halving into ``DeviceOutOfMemory``."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        first_line = str(error).splitlines()[0]
        raise DeviceOutOfMemory(f"{device.name}: {first_line} Lower profile.micro_batch") from error


def versions() -> dict[str, str]:
    """Return the versions that affect the bitwise result of a training, in addition to the spec."""
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
