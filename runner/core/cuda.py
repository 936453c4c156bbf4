"""Builds of torch for CUDA that a machine can run, by its driver and by its GPUs.

The least drivers are those of NVIDIA's release notes for CUDA 12 and 13
(https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/, table of minimum driver versions; within a major
version, later toolkits run with the driver of the first).  The capabilities are those of PyTorch's release
matrix for 2.12 to 2.14, Linux on x86 (https://github.com/pytorch/pytorch/blob/main/RELEASE.md).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, ...]
Pair: TypeAlias = tuple[int, int]

LEAST_DRIVERS: Final = {13: (580, 65, 6), 12: (525, 60, 13), 11: (450, 80, 2)}
"""The least driver for each major version of CUDA, on Linux; later minor versions run with it, too."""

CAPABILITIES: Final[Mapping[Pair, tuple[Pair, Pair]]] = {
    (12, 6): ((5, 0), (9, 0)),  # Maxwell to Hopper
    (13, 0): ((7, 5), (12, 1)),  # Turing to Blackwell
    (13, 2): ((7, 5), (12, 1)),
}
"""The oldest and the newest compute capability for which the wheels of a version have code.

Code for 12.0 also runs on 12.1.  A version that is not listed is taken to fit every GPU."""

OLDER_LOCK: Final = "cuda-12.6"
"""The lock for older drivers and GPUs: the only CUDA 12 for which there are wheels of torch 2.13."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as a build of torch sees it; None: its capability is not known."""

    name: str
    capability: Pair | None = None


@dataclass(frozen=True, slots=True)
class LockChoice:
    """The lock whose image a machine can run; ``problem`` says why there is none, with the next step."""

    name: str | None
    problem: str = ""


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version: 20.10.24+dfsg1 is (20, 10, 24)."""
    parts: list[int] = []
    for part in text.split("."):
        leading = len(part) - len(part.lstrip("0123456789"))
        if not leading:
            break
        parts.append(int(part[:leading]))
        if leading != len(part):
            break
    return tuple(parts)


def driver_fits(driver: str, cuda: Pair) -> bool:
    """Return True if a driver is new enough for a version of CUDA; what is not known fits."""
    least = LEAST_DRIVERS.get(cuda[0])
    return least is None or parse_version(driver) >= least


def driver_problem(driver: str, cuda: Pair) -> str | None:
    """Return the reason why a driver is too old for a version of CUDA and what to do, None if it is not."""
    if driver_fits(driver, cuda):
        return None
    fact = f"driver {driver} is too old: the image's torch needs CUDA {dotted(cuda)}"
    return f"{fact}; {driver_advice(driver, cuda)}"


def driver_advice(driver: str | None, cuda: Pair) -> str:
    """Return the advice about a driver that is too old for a version of CUDA."""
    least = LEAST_DRIVERS.get(cuda[0])
    update = "update the driver" if least is None else f"update the driver to {dotted(least[:2])} or later"
    if cuda[0] > 12 and driver is not None and driver_fits(driver, (12, 6)):
        return f"{update}, or make the lock for CUDA 12.6 (runner images lock {OLDER_LOCK})"
    return update


def gpu_problem(gpu: Gpu, cuda: Pair) -> str | None:
    """Return the reason why the wheels for a version of CUDA have no code for a GPU, None if they have."""
    if gpu.capability is None or _fits(gpu, cuda):
        return None
    oldest, newest = CAPABILITIES[cuda]
    fact = f"{gpu.name} has compute capability {dotted(gpu.capability)}"
    needs = f"the image's torch for CUDA {dotted(cuda)} has code for {dotted(oldest)} to {dotted(newest)}"
    fits = gpu.capability < oldest and _fits(gpu, (12, 6))
    step = f"make the lock for CUDA 12.6 (runner images lock {OLDER_LOCK})" if fits else "take another GPU"
    return f"{fact}; {needs}; {step}"


def choose_lock(offered: Mapping[str, Pair], driver: str | None, gpus: Collection[Gpu]) -> LockChoice:
    """Return the one of several locks, by name with their CUDA, that gives the image of this machine.

    It is the newest one that the driver can run and that has code for all GPUs; where none has, the newest
    of those with code for most of them.  Without a driver, as on a machine that only builds, the newest.
    """
    newest_first = sorted(offered, key=lambda name: offered[name], reverse=True)
    if driver is None:
        return LockChoice(newest_first[0])
    runs = [name for name in newest_first if driver_fits(driver, offered[name])]
    if not runs:
        oldest = offered[newest_first[-1]]
        return LockChoice(None, driver_problem(driver, oldest) or "")
    return LockChoice(max(runs, key=lambda name: _count_fitting(gpus, offered[name])))


def launch_problem(cuda: Pair, driver: str | None, gpus: Iterable[Gpu]) -> str | None:
    """Return why torch for a version of CUDA cannot run with a driver on some GPUs, None if it can."""
    if driver is not None and (problem := driver_problem(driver, cuda)):
        return problem
    return next((problem for gpu in gpus if (problem := gpu_problem(gpu, cuda))), None)


def _count_fitting(gpus: Iterable[Gpu], cuda: Pair) -> int:
    return sum(_fits(gpu, cuda) for gpu in gpus)


def _fits(gpu: Gpu, cuda: Pair) -> bool:
    if gpu.capability is None or cuda not in CAPABILITIES:
        return True
    oldest, newest = CAPABILITIES[cuda]
    return oldest <= gpu.capability <= newest


def dotted(version: Iterable[int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))
