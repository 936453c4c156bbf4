"""Prints devices and health as ``runner.adapters.gpu.nvidia`` reports them, and the time of a poll."""

import json
import statistics
import time
from dataclasses import asdict
from typing import Final

from runner.adapters.gpu.nvidia import NvidiaHealth, NvidiaProbe

POLLS: Final = 30


def main() -> None:
    """Print one line of JSON."""
    devices = NvidiaProbe().devices()
    probe, took = NvidiaHealth(), []
    health = probe.read(devices)
    for _ in range(POLLS):
        began = time.perf_counter()
        health = probe.read(devices)
        took.append((time.perf_counter() - began) * 1000)
    summary = {
        "devices": [asdict(device) for device in devices],
        "health": {uuid: asdict(each) for uuid, each in health.items()},
        "look_ms": {"median": statistics.median(took), "longest": max(took), "looks": POLLS},
    }
    print(json.dumps(summary, default=str))


if __name__ == "__main__":
    main()
