"""Everything that ``make bench`` does, once and small: the numbers are not looked at."""

import json
from pathlib import Path

import pytest

from bench.__main__ import ALONE, BENCHES, main
from bench.support import result_files

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]  # every case, one by one


def test_a_quick_measurement_fills_every_bench_and_keeps_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--results", str(tmp_path)]) == 0
    [numbers] = tmp_path.glob("*/all.json")
    measured = {line["bench"] for line in json.loads(numbers.read_text())["lines"] if "ours" in line}
    # A quick training of that case may be over before its memory is looked at twice; it says so then.
    assert set(BENCHES) - measured <= {"stream-scale", *ALONE}
    assert result_files.show(numbers).partition("\n\n")[2] in capsys.readouterr().out
