"""A test that needs a part which is not installed is skipped on a laptop, and fails under CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDS_A_COMPILER = "tests/integration/process/runner/control/test_inventory_lives.py"


@pytest.mark.parametrize(("ci", "status", "word"), [("", 0, "skipped"), ("true", 1, "error")])
def test_a_missing_compiler_skips_its_tests_on_a_laptop_and_fails_them_under_ci(
    tmp_path: Path, ci: str, status: int, word: str
) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NEEDS_A_COMPILER]
    environ = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, word in done.stdout.splitlines()[-1]) == (status, True), done.stdout
    assert "no C compiler" in done.stdout
