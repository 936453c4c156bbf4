"""The machine of a report: device, driver, CUDA, torch and host, without host name and paths."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from bench.support.machine import this_machine
from scripts.gpu_report.context import environment

NO_DEVICE: Final = "no CUDA device"

LIMIT_S: Final = 120.0

SCRIPT: Final = """
import json, torch
found = {"torch": torch.__version__}
if torch.cuda.is_available():
    device = torch.cuda.get_device_properties(0)
    found |= {
        "device": device.name,
        "devices": torch.cuda.device_count(),
        "capability": f"{device.major}.{device.minor}",
        "memory": f"{device.total_memory / 2**30:.1f} GiB",
        "CUDA": torch.version.cuda,
        "cuDNN": str(torch.backends.cudnn.version()),
    }
print(json.dumps(found))
"""


def described(*, rehearsal: bool) -> Mapping[str, Any]:
    """Return the properties of the machine, by name."""
    host = this_machine()
    known: dict[str, Any] = {"device": "none (rehearsal)"} if rehearsal else _device()
    if not rehearsal and (driver := nvidia_smi("driver_version")):
        known["driver"] = driver[0]
    processor = f"{host.cpu}, {host.cores} cores, {host.memory_gib:.0f} GiB"
    return {**known, "Python": host.python, "processor": processor, "Linux": host.kernel}


def _device() -> dict[str, Any]:
    output = _output((sys.executable, "-c", SCRIPT))
    found: dict[str, Any] = json.loads(output.splitlines()[-1]) if output else {}
    return {"device": NO_DEVICE, **found}


def nvidia_smi(*fields: str) -> list[str] | None:
    """Return fields of the first device from ``nvidia-smi``; None if the command is missing or fails."""
    output = _output(("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"))
    return [cell.strip() for cell in output.splitlines()[0].split(", ")] if output else None


def _output(argv: tuple[str, ...]) -> str:
    """Return the output of a program; empty if it is missing or fails."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment()
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
