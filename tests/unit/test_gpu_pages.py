"""The page about defects of the GPU path names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "provenance/gpu-defects.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", PAGE)
    assert named
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_every_defect_has_a_test_or_needs_none() -> None:
    defects = PAGE.partition("\n## ")[0]
    rows = [line.split(" | ") for line in defects.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 17
    without = [row[0].removeprefix("| ") for row in rows if "`tests/" not in row[-1]]
    assert without == ["`HSA_OVERRIDE_GFX_VERSION` for one device was documented nowhere"]
