"""The promise for trainings that end early: what depends on evaluations survives kills, too."""

import os
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import verify
from tests.chaos.test_bitwise_processes import ARMS, KILLS, LONG, spec, torture
from tests.fakes.workloads.small_sets import KINDS

ADAPTIVE: dict[str, Any] = {
    "steps": 20,
    "eval_every": 3,
    "early_stopping": {"patience": 3, "min_delta": 1e9},
    "lr_plateau": {"patience": 0, "factor": 0.5, "threshold": 0.9},
    "swa": {"start": 0.2, "average_every": 2, "learning_rate": 1e-3, "anneal_steps": 4},
}
"""All that depends on evaluations; nothing improves by that much, so every training ends at step 12 of 20."""

STOPPED = (
    [*KINDS, "pair_classifier lora", "graph_forecast fan"] if LONG else ["imu_stream", "pair_classifier"]
)
"""What depends on evaluations belongs to the trainer; ``test_bitwise_processes`` evaluates every workload."""


@pytest.mark.timeout(180 + 20 * KILLS)
@pytest.mark.parametrize("kind", STOPPED)
def test_a_training_that_stops_early_stops_there_with_the_same_bits_when_killed(
    kind: str, tmp_path: Path
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    asked = spec(kind, tmp_path / "some examples")
    asked["workload"].update(ADAPTIVE)
    asked["checkpoint"] = {"every_steps": 2, "keep": 2, "before_eval": True}
    kills = {"timed_kills": KILLS // 4, "line_kills": KILLS // 4, "stopped_jobs": 1}
    report = torture(tmp_path / "jobs", {"spec": asked, "arms": ARMS[:2], "seed": seed, **kills})
    assert report["reference"]["weights"]
    assert report["reference"]["state"]
    for end in report["ends"]:
        assert end == report["reference"]
    finals = [verify(path) for path in (tmp_path / "jobs").glob("*/lineages/1/final")]
    assert {final.step for final in finals} == {12}
    assert all(final.stopped_early.endswith("for 3 evaluations") for final in finals)
