"""A plugin of pytest that notes which lines and branches run: ``pytest -p scripts.coverage_plugin``.

Each process of a run writes what it has seen when it ends, under the name of its worker;
``scripts/coverage_check.py`` reads them all.  Processes that a test starts are not counted: the
unit tests run the same lines.
"""

import json
import os
import time
from pathlib import Path
from typing import Final

import pytest
from slipcover import FileMatcher, ImportManager, Slipcover

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / ".coverage"
SOURCES: Final = ("gpu_job_runner", "runner", "jobs", "images")

PAUSE: Final = 20.0
"""Seconds between two rounds in which what has been seen is no longer watched."""


class _Seen(Slipcover):  # type: ignore[misc]  # which says nothing of its types
    """Limits how often a round begins: a round searches every function of every module, which is costly."""

    _next = 0.0

    def deinstrument_seen(self) -> None:
        """Begin a round; functions skipped now belong to the next one."""
        if time.monotonic() >= self._next:
            super().deinstrument_seen()
            self._next = time.monotonic() + PAUSE


_first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
"""One process alone looks for files that nothing has imported: it compiles them, which takes seconds."""

_matcher = FileMatcher(sources=[str(ROOT / each) for each in SOURCES])
_seen = _Seen(branch=True, source=[str(ROOT / each) for each in SOURCES] if _first else None)
ImportManager(_seen, _matcher).__enter__()  # as early as possible: earlier imports are not seen


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the coverage of this process; a process that only distributes tests to workers has none."""
    if session.config.getoption("numprocesses", None):
        return
    FOLDER.mkdir(exist_ok=True)
    name = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    (FOLDER / f"{name}.json").write_text(json.dumps(_seen.get_coverage()))
