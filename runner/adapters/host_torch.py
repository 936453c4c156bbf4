"""The torch of this host's Python, which runs built-in workloads where jobs are plain processes.

It is read from the metadata of the installed packages: the daemon never loads torch.
"""

import re
from importlib.metadata import PackageNotFoundError, version

from runner.adapters.gpu.nvidia import driver_version
from runner.core.cuda import Gpu, launch_problem, parse_version
from runner.core.ports.executor import LaunchRequest

RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


def cuda_of_host() -> tuple[int, int] | None:
    """Return the CUDA of the installed torch, None if it has none or there is none."""
    torch = _version("torch")
    if torch is None:
        return None
    _, _, local = torch.partition("+")
    if local:
        named = re.fullmatch(r"cu(\d+)(\d)", local)
        return (int(named[1]), int(named[2])) if named else None
    for name in RUNTIMES:
        found = parse_version(_version(name) or "")[:2]
        if len(found) == 2:
            return found[0], found[1]
    return None


def host_problem(request: LaunchRequest) -> str | None:
    """Return the reason why the torch of this host cannot run an attempt on its devices, None if it can.

    Programs bring a Python of their own, of which nothing is known.
    """
    devices = [each for each in request.devices if each.vendor == "nvidia"]
    if not devices or request.argv[1:4] != ("-P", "-m", "jobs"):
        return None
    cuda = cuda_of_host()
    gpus = [Gpu(each.label or each.uuid, each.capability) for each in devices]
    problem = None if cuda is None else launch_problem(cuda, driver_version(), gpus)
    if problem is None:
        return None
    fact = problem.rpartition("; ")[0].replace("the image's torch", f"the torch of {request.argv[0]}")
    return f"{fact}; update the driver, or install a build of torch that fits (docs/operate/gpu-images.md)"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
