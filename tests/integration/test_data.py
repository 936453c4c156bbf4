"""One data set really downloaded, the smallest: what is recorded is what the package index gives."""

import csv
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.fakes.patience import patience


def runner(state: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "runner.cli.main", "data", *args],
        env={**os.environ, "RUNNER_STATE_DIR": str(state)},
        capture_output=True, text=True, check=False, timeout=patience(240),
    )  # fmt: skip


def test_the_smallest_data_set_is_what_its_package_holds(tmp_path: Path) -> None:
    done = runner(tmp_path, "prepare", "solubility")
    assert done.returncode == 0, done.stderr
    assert "Apache-2.0" in done.stdout
    with (tmp_path / "data" / "solubility" / "molecules.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert Counter(row["split"] for row in rows) == {"train": 1025, "test": 257}
    assert Counter(row["class"] for row in rows if row["split"] == "train") == {
        "low": 417, "medium": 402, "high": 206,
    }  # fmt: skip
    assert all(row["smiles"] and float(row["logs"]) < 5 for row in rows)
    assert "verified" in runner(tmp_path, "prepare", "solubility").stdout
