"""The device as reported by the NVML adapter, by ``nvidia-smi`` and by ``runner gpus``."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from scripts.gpu_report.context import Context, output_of
from scripts.gpu_report.daemon import COMMAND, Daemon, daemon
from scripts.gpu_report.machine import nvidia_smi
from scripts.gpu_report.report import Finding, checked, measured, not_run

TITLE: Final = "device discovery and health"

FIELDS: Final = ("uuid", "name", "memory.total", "compute_cap", "mig.mode.current", "pci.bus_id")
BESIDE: Final = (
    "driver_version", "persistence_mode", "compute_mode", "ecc.mode.current", "temperature.gpu", "power.draw",
    "clocks.max.sm", "pcie.link.gen.current", "pcie.link.width.current",
)  # fmt: skip


def run(context: Context) -> Iterator[Finding]:
    """Yield discovery, comparison with nvidia-smi, health, and topology."""
    with daemon(context) as server:
        server.reaches("free", "foreign", "dirty")
        found = _asked(server)
        yield from _probed(found)
        yield from _beside(context, found)
        yield _health(found)
        yield _gpus(server)
        yield _topology(context)


def _asked(server: Daemon) -> dict[str, Any]:
    """Return the adapter's answers, from a process that loads the same NVML library as the daemon.

    Raises:
        CannotMeasureHere: it fails.
    """
    argv = [sys.executable, "-m", "scripts.gpu_report.seen_probe"]
    found: dict[str, Any] = json.loads(output_of(argv, 60, server.environ).strip().splitlines()[-1])
    return found


def _probed(found: dict[str, Any]) -> Iterator[Finding]:
    for device in found["devices"]:
        summary = ", ".join(f"{key} {value}" for key, value in device.items() if key != "uuid")
        yield checked("discovery", summary, good=None not in (device["memory_bytes"], device["capability"]))
    if not found["devices"]:
        yield checked("discovery", "the adapter finds no device", good=False)


def _beside(context: Context, found: dict[str, Any]) -> Iterator[Finding]:
    name = "agreement with nvidia-smi"
    cells = None if context.rehearsal else nvidia_smi(*FIELDS)
    if cells is None:
        yield not_run(name, "the driver is a fake" if context.rehearsal else "nvidia-smi is not installed")
        return
    theirs = dict(zip(FIELDS, cells, strict=False))
    ours = found["devices"][0]
    mib = (ours["memory_bytes"] or 0) / 2**20
    pairs = {
        "uuid": (ours["uuid"], theirs["uuid"]),
        "name": (ours["name"], theirs["name"]),
        "memory": (f"{mib:.0f}", theirs["memory.total"]),
        "capability": (".".join(map(str, ours["capability"] or ())), theirs["compute_cap"]),
    }
    wrong = [f"{key}: {mine} beside {other}" for key, (mine, other) in pairs.items() if mine != other]
    kind = f"MIG {theirs['mig.mode.current']}, ours: {ours['kind']}"
    yield checked(name, "; ".join(wrong) or f"uuid, name, memory, capability; {kind}", good=not wrong)
    beside = dict(zip(BESIDE, nvidia_smi(*BESIDE) or (), strict=False))
    yield measured("other values of nvidia-smi", ", ".join(f"{k} {v}" for k, v in beside.items()), **beside)


def _health(found: dict[str, Any]) -> Finding:
    health: dict[str, Any] = next(iter(found["health"].values()), {})
    silent = [key for key, value in health.items() if value is None]
    shown = {key: value for key, value in health.items() if value is not None}
    took = found["look_ms"]
    summary = (
        f"{took['median']:.2f} ms a poll (maximum {took['longest']:.2f} of {took['looks']});"
        f" reported: {shown}; not reported: {', '.join(silent) or 'nothing'}"
    )
    return checked(
        "health poll", summary, good=health.get("used_bytes") is not None, look_ms=took, silent=silent
    )


def _gpus(server: Daemon) -> Finding:
    done = subprocess.run(
        [*COMMAND, "gpus"], capture_output=True, text=True, env=server.environ, check=False, timeout=60
    )
    rows = done.stdout.strip().splitlines()
    return checked("runner gpus", " / ".join(rows)[:600] or done.stderr[-600:], good=bool(rows))


def _topology(context: Context) -> Finding:
    if context.rehearsal or shutil.which("nvidia-smi") is None:
        return not_run("topology", "needs a real driver")
    done = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=60
    )
    plain = re.sub(r"\x1b\[\d*m", "", done.stdout)  # the head is underlined
    lines = [" ".join(line.split()) for line in plain.splitlines() if line.strip()]
    return measured("topology", " / ".join(lines[:3]) or done.stderr[-300:])
