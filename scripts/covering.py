"""A plugin of pytest that notes which lines and branches run: ``pytest -p scripts.covering``.

Each process of a run writes what it has seen when it ends, under the name of its worker;
``scripts/covered.py`` reads them all.  Of processes beside a test nobody counts: the unit tests
run the same lines.
"""

import json
import os
from pathlib import Path
from typing import Final

import pytest
from slipcover import FileMatcher, ImportManager, Slipcover

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / ".coverage"
SOURCES: Final = ("runner", "jobs", "images")

_matcher = FileMatcher(sources=[str(ROOT / each) for each in SOURCES])
_seen = Slipcover(branch=True, source=[str(ROOT / each) for each in SOURCES])
ImportManager(_seen, _matcher).__enter__()  # as early as this plugin: what is imported before is not seen


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Leave what was seen."""
    FOLDER.mkdir(exist_ok=True)
    name = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    (FOLDER / f"{name}.json").write_text(json.dumps(_seen.get_coverage()))
