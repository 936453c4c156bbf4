"""All that ``make bench`` does, once and small: the numbers are not looked at.

``make test`` takes the benches that end within seconds, without those that unit tests measure; ``make soak``
takes all (``BENCHES=all``).
"""

import json
import os
from pathlib import Path
from typing import Final

import pytest

from bench.__main__ import ALONE, BENCHES, main
from bench.support import result_files

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]  # every case, one by one

SHORT: Final = (
    "submit",
    "snapshot",
    "post",
    "run",
    "growth",
    "decisions",
    "placement",
)
NAMES: Final = () if os.environ.get("BENCHES") == "all" else SHORT


def test_a_quick_measurement_fills_its_benches_and_keeps_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NAMES, "--quick", "--results", str(tmp_path)]) == 0
    [numbers] = tmp_path.glob("*/*.json")
    measured = {line["bench"] for line in json.loads(numbers.read_text())["lines"] if "ours" in line}
    # A quick training of that case may be over before its memory is looked at twice; it says so then.
    assert set(NAMES or BENCHES) - measured <= {"stream-scale", *ALONE}
    assert result_files.show(numbers).partition("\n\n")[2] in capsys.readouterr().out
