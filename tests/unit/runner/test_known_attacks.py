"""The table of known attacks names tests that exist, one for each attack."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "provenance" / "attacks.md").read_text()
ROWS = re.findall(r"^\| H(\d+) \|.*\| `(tests/\S+\.py)::(test_\w+)` \|$", PAGE, re.MULTILINE)


def test_every_attack_has_a_test_that_exists() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) > 30
    missing = [
        f"{path}::{name}"
        for _, path, name in ROWS
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []
