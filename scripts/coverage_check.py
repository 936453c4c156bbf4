"""Print the lines that no test runs, and fail if there are more than the limits allow.

The input is the output of ``scripts/coverage_plugin.py``.  A ``match`` whose last case is marked as
exhaustive has no branch past it: the type checker proves that, and no test can run that branch.
"""

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slipcover import merge_coverage

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / ".coverage"
MARK: Final = "# exhaustive"
WHOLLY: Final = ("runner/core/", "jobs/contract/")
"""Here every line and every branch."""
PERCENT: Final = 90.0
"""At least, of everything else but ``APART``."""
APART: Final = (
    "images/packages/sdist.py",
    "jobs/inside/",
    "jobs/training/ranks.py",  # they run in the processes of a gang
    "jobs/training/reduction.py",
    "jobs/training/sharding.py",
    "runner/adapters/docker/doctor.py",
    "runner/adapters/docker/exec.py",
    "runner/adapters/docker/export.py",
    "runner/adapters/docker/outbound.py",
    "runner/adapters/host/spawner.py",
    "runner/adapters/host/network_probe.py",
    "runner/adapters/slurm/check.py",
    "runner/adapters/slurm/commands.py",
    "runner/adapters/slurm/containers.py",
    "runner/adapters/slurm/executor.py",
    "runner/adapters/slurm/images.py",
    "runner/adapters/slurm/queue.py",
)
"""Programs of their own and parts of the engines' adapters: the later tests run them, and count no lines."""


@dataclass(frozen=True, slots=True)
class File:
    """The coverage of one file."""

    path: str
    lines: tuple[int, ...]
    branches: tuple[tuple[int, int], ...]  # from a line to a line; 0: out of the function
    ran: int

    @property
    def missing(self) -> int:
        return len(self.lines) + len(self.branches)

    def __str__(self) -> str:
        branches = [f"{start}->{end or 'exit'}" for start, end in self.branches]
        return f"{self.path}: {', '.join([*map(str, self.lines), *branches])}"


def main() -> int:
    """Print every file without full coverage, and the total coverage."""
    files = list(_files())
    for file in files:
        if file.missing:
            print(file)
    counted = [file for file in files if not file.path.startswith(APART)]
    ran, missing = sum(file.ran for file in counted), sum(file.missing for file in counted)
    percent = 100 * ran / (ran + missing) if ran else 0.0
    print(f"{percent:.1f} % of lines and branches ran, of at least {PERCENT:.0f} %")
    short = [file.path for file in files if file.missing and file.path.startswith(WHOLLY)]
    for path in short:
        print(f"{path}: of {' and '.join(WHOLLY)} every line and branch must run")
    return 1 if short or percent < PERCENT else 0


def _files() -> Iterator[File]:
    reports: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    if not reports:
        sys.exit(f"{FOLDER}: nothing is there; scripts/coverage_plugin.py writes it")
    whole = reports[0]
    for report in reports[1:]:
        merge_coverage(whole, report)
    for path, found in sorted(whole["files"].items()):
        proven = _proven(ROOT / path)
        branches = [
            (start, end)
            for start, end in found["missing_branches"]
            if start not in proven or start < end <= proven[start]
        ]
        ran = len(found["executed_lines"]) + len(found["executed_branches"])
        yield File(path, tuple(found["missing_lines"]), tuple(branches), ran)


def _proven(path: Path) -> dict[int, int]:
    """Return first and last line of every match that the type checker has proven to be exhaustive."""
    source = path.read_text()
    if MARK not in source:
        return {}
    marked = {number for number, line in enumerate(source.splitlines(), 1) if line.endswith(MARK)}
    matches = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Match)]
    return {
        node.lineno: node.end_lineno or node.lineno
        for node in matches
        if node.cases[-1].pattern.lineno in marked
    }


if __name__ == "__main__":
    sys.exit(main())
