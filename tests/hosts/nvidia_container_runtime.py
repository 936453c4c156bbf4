#!/usr/bin/env python3
"""A stand-in for NVIDIA's container runtime: it gives a container the nodes of its devices, and calls runc.

It fails as the real one does while ``/run/driver-mismatch`` is there.
"""

import json
import os
import sys
from pathlib import Path

MISMATCH = "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"


def main(arguments: list[str]) -> None:
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        spec = json.loads(path.read_text())
        variables = dict(each.partition("=")[::2] for each in spec["process"]["env"])
        wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "void")
        if wanted != "void":
            if Path("/run/driver-mismatch").exists():
                log = Path(arguments[arguments.index("--log") + 1])  # where containerd looks for the words
                log.write_text(
                    json.dumps({"level": "error", "msg": MISMATCH, "time": "2026-01-01T00:00:00Z"})
                )
                sys.exit(1)
            node = {"type": "c", "major": 1, "minor": 3}  # that of /dev/null
            for each in wanted.split(","):
                number = each.removeprefix("GPU-h")
                spec["linux"].setdefault("devices", []).append({"path": f"/dev/nvidia{number}", **node})
            path.write_text(json.dumps(spec))
    os.execvp("runc", ["runc", *arguments])  # noqa: S606  as the real one does


if __name__ == "__main__":
    main(sys.argv[1:])
