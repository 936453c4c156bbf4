"""The promise: kill -9 at any moment, resume, and the final bits are those of the undisturbed training.

``JOBS_KILLS`` asks for more kills than the few that every build can afford.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("JOBS_KILLS", "30"))
DRIVER = Path(__file__).with_name("bitwise_driver.py")
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A few real files, copied so that nothing but the seed decides what is in them."""
    directory = tmp_path / "some text"
    directory.mkdir()
    for path in sorted(Path(json.__file__).parent.glob("*.py")):
        shutil.copy(path, directory)
    return directory


def spec(corpus: Path, *, async_save: bool) -> dict[str, Any]:
    return {
        "job_id": "chaos",
        "lineage": 1,
        "seed": 7,
        "workload": {
            "data": str(corpus),
            "steps": 30,
            "batch_size": 3,
            "context": 16,
            "layers": 1,
            "heads": 2,
            "width": 16,
            "dropout": 0.2,
            "warmup_steps": 4,
            "eval_every": 7,
            "eval_batches": 2,
        },
        "profile": {"micro_batch": 2, "async_save": async_save},
        "checkpoint": {"every_steps": 3, "keep": 2},
    }


def torture(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DRIVER), str(directory), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(60 + 3 * KILLS)
@pytest.mark.parametrize("async_save", [True, False], ids=["saved-by-another-thread", "saved-in-line"])
def test_a_training_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, corpus: Path, *, async_save: bool
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    asked = {
        "spec": spec(corpus, async_save=async_save),
        "seed": seed,
        "timed_kills": KILLS // 2,
        "line_kills": KILLS // 2,
        "stopped_jobs": 1 + KILLS // 15,
    }
    report = torture(tmp_path / "jobs", asked)
    assert report["timed_kills"] >= KILLS // 2
    assert report["line_kills"] >= KILLS // 2
    assert report["steps_lost_by_stops"] == 0
    assert report["reference"]["weights"]
    assert report["reference"]["state"]
    for end in report["ends"]:
        assert end == report["reference"]
