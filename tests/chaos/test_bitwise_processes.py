"""The promise: kill -9 at any moment, resume, and the final bits are those of the undisturbed training.

It holds for every workload, whoever makes the batches and whoever writes the checkpoints.  ``JOBS_KILLS``
asks for more kills of each workload than the few that every build can afford.
"""

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.preloaded import ENVIRONMENT, TRAINER, parent_with
from tests.fakes.patience import patience
from tests.fakes.workloads.small_sets import KINDS, VARIANTS, small_plan

KILLS = int(os.environ.get("JOBS_KILLS", "4"))
DRIVER = Path(__file__).with_name("bitwise_driver.py")
ARMS = [
    {"async_save": in_a_thread, "loader_workers": count}
    for in_a_thread, count in product((True, False), (0, 2))
]
"""What must not change a bit; a job keeps to one of them."""


LONG = KILLS > 4
KILLED_ELSEWHERE = {"joints", "poser 16", "foot_contact", "velocity"}
"""Networks of a body: ``test_bitwise_chain`` kills them, and the poser is here; ``make soak`` kills all."""

SHORT_FORM = [*KINDS, *(name for name in VARIANTS if name.partition(" ")[2] not in KILLED_ELSEWHERE)]

TRACED = [{}, {"trace": {"steps": [4, 8]}}]
"""The same about what is only looked at."""


def spec(kind: str, directory: Path) -> dict[str, Any]:
    return {
        "job_id": "chaos",
        "lineage": 1,
        "seed": 7,
        "workload": {**small_plan(kind, directory), "steps": 20 if LONG else 14, "eval_every": 7},
        "profile": {"micro_batch": 2},
        "checkpoint": {"every_steps": 3, "keep": 2},
    }


def torture(directory: Path, asked: dict[str, Any]) -> dict[str, Any]:
    directory.mkdir()
    log = directory / "log.txt"
    arguments = (str(directory), json.dumps(asked))
    driver = parent_with(TRAINER).start(DRIVER, *arguments, environ=ENVIRONMENT, log=log)
    try:
        assert driver.wait(patience(60 + 10 * KILLS)) == 0, log.read_text()
    finally:
        driver.kill()
    report: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return report


@pytest.mark.timeout(120 + 20 * KILLS)
def test_a_training_whose_micro_batch_was_found_keeps_it_when_killed(tmp_path: Path) -> None:
    """Each attempt after the first meets a device with more room; every other job records a trace."""
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    asked = spec("causal_lm", tmp_path / "some examples")
    asked["workload"]["batch_size"] = 12
    asked["profile"] = {"micro_batch": "auto"}
    kills = {"timed_kills": KILLS // 2, "line_kills": KILLS // 2, "stopped_jobs": 1}
    report = torture(tmp_path / "jobs", {"spec": asked, "arms": TRACED, "seed": seed, **kills})
    assert report["reference"]["weights"]
    for end in report["ends"]:
        assert end == report["reference"]
    files = (tmp_path / "jobs").glob("*/lineages/1/micro-batch.json")
    kept = [json.loads(path.read_text()) for path in files]
    assert kept == [{"batch_size": 12, "rows": 4}] * len(kept)
    assert len(kept) > 2


@pytest.mark.timeout(120 + 20 * KILLS)
@pytest.mark.parametrize("kind", [*KINDS, *VARIANTS] if LONG else SHORT_FORM)
def test_a_training_killed_at_random_moments_ends_with_the_bits_of_an_undisturbed_one(
    kind: str, tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    kills, arms, asked = KILLS // 2, ARMS, spec(kind, tmp_path / "some examples")
    if kind in VARIANTS and not LONG:  # it is fed and saved as its kind is
        kills, arms = 1, [ARMS[0], ARMS[-1]]
    asked = {
        "spec": asked,
        "arms": arms,
        "seed": seed,
        "timed_kills": kills,
        "line_kills": kills,
        "stopped_jobs": 1 + KILLS // 15,
    }
    report = torture(tmp_path / "jobs", asked)
    print({name: report[name] for name in report if name != "ends"})  # noqa: T201 - as above
    assert report["timed_kills"] >= kills
    assert report["line_kills"] >= kills
    assert report["steps_lost_by_stops"] == 0
    assert report["reference"]["weights"]
    assert report["reference"]["state"]
    assert len(report["ends"]) >= len(arms) - 1  # the reference is of another one
    for end in report["ends"]:
        assert end == report["reference"]
