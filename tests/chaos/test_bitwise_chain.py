"""The promise for chained jobs: one that begins with another's weights, killed, ends with equal bits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import RunPaths
from tests.chaos.test_bitwise_processes import ARMS, REPOSITORY, spec, torture


def trained(root: Path, asked: dict[str, Any]) -> Path:
    """Train a job to its end, and return the directory of its finished weights."""
    paths = RunPaths(root, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    paths.spec.write_text(json.dumps({**asked, "attempt": 1}))
    argv = [sys.executable, "-m", "jobs", "--root", str(root), "--attempt", "1", "--lineage", "1"]
    subprocess.run(argv, check=True, capture_output=True, cwd=REPOSITORY)
    return paths.final_dir


@pytest.mark.timeout(240)
def test_a_network_that_begins_where_another_ended_is_killed_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    before = spec("imu_stream joints", tmp_path / "made up")
    final = trained(tmp_path / "first", before)
    after = spec("imu_stream velocity", tmp_path / "made up")
    after["workload"]["init_from"] = "job/1/final"
    after["init_weights"] = str(final)
    kills = {"timed_kills": 3, "line_kills": 3, "stopped_jobs": 1}
    report = torture(tmp_path / "jobs", {"spec": after, "arms": ARMS, "seed": seed, **kills})
    assert report["reference"]["weights"]
    for end in report["ends"]:
        assert end == report["reference"]
    alone = spec("imu_stream velocity", tmp_path / "made up")
    other = torture(tmp_path / "others", {"spec": alone, "arms": ARMS, "seed": seed, **kills})
    assert other["reference"]["weights"] != report["reference"]["weights"]
