"""One part in a process of its own: ``python -m scripts.gpu_report.run_part NAME``.

Lines are written as they come, so that what was measured before a hang or a crash is not lost.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from scripts.gpu_report.context import CannotMeasureHere, Context, PartFunction
from scripts.gpu_report.report import REHEARSED, Finding, not_run

ORDER: Final = (
    "sources",
    "exact",
    "near_limit",
    "fast",
    "oom",
    "restart",
    "lent",
    "seen",
    "hang",
    "several",
)
"""The parts, most valuable first."""

LIMITS_S: Final[Mapping[str, float]] = {
    "sources": 360,
    "exact": 240,
    "near_limit": 420,
    "fast": 570,
    "oom": 150,
    "restart": 400,
    "lent": 150,
    "seen": 45,
    "hang": 100,
    "several": 60,
}
"""Maximum time of each part; the budget may leave less."""


def module(name: str) -> ModuleType:
    """Return the module of a part, which has ``TITLE`` and ``run``."""
    return import_module(f"scripts.gpu_report.{name}")


def main() -> int:
    """Run one part, and append each line to a file as it comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ORDER)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    context = Context(asked.rehearse, asked.directory, time.monotonic() + asked.limit, tiny=asked.tiny)
    mark = f" ({REHEARSED})" if context.rehearsal or context.tiny else ""
    function: PartFunction = module(asked.name).run
    with asked.findings.open("a") as file:
        try:
            for finding in function(context):
                _write(file.fileno(), mark, finding)
        except CannotMeasureHere as error:
            _write(file.fileno(), mark, not_run(asked.name, str(error)))
        except Exception as error:  # noqa: BLE001 - outermost frame: a defect of a part is a finding
            traceback.print_exc()
            summary = f"{type(error).__name__}: {error}"[:2000]
            _write(file.fileno(), mark, Finding(asked.name, "failed", f"defect of the part: {summary}"))
            return 1
    return 0


def _write(descriptor: int, mark: str, finding: Finding) -> None:
    import os

    os.write(descriptor, (json.dumps(asdict(finding)) + "\n").encode())
    sys.stdout.write(f"  {finding.status:9}{mark} {finding.name}: {finding.summary[:300]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
