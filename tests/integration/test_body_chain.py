"""The examples of the four networks, shortened: each begins where another ended, and beats a statue."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from images.store import ImageStore
from tests.fakes.daemon.service import Json, Service, service

pytestmark = pytest.mark.engine

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
NAMES: Final = ("imu_stream_body", *(f"imu_stream_body_{n}" for n in ("poser", "foot_contact", "velocity")))
PRIMARY: Final = ("eval_joints_cm", "eval_angle_deg", "eval_contact_loss", "eval_velocity_m_s")

SHORT: Final[dict[str, Any]] = {
    "steps": 160,
    "window": 20,
    "batch_size": 48,
    "hidden": 32,
    "layers": 1,
    "learning_rate": 0.01,
    "synthetic_sequences": 60,
    "synthetic_frames": 80,
    "eval_every": 160,
    "eval_batches": 2,
    "warmup_steps": 10,
}


def shortened(daemon: Service, name: str) -> Path:
    fields: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    known = fields | {"workload": fields["workload"] | SHORT, "resources": {"cpus": 1, "memory": "1GiB"}}
    return daemon.file(known.pop("name"), **known)


@pytest.fixture(scope="module")
def ended(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Json]]:
    assert engine
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker") as daemon:
        daemon.start()
        ids = [daemon.submit(shortened(daemon, name)) for name in NAMES]
        yield [{**daemon.ends(job_id), "log": daemon.log(job_id)} for job_id in ids]


def test_the_last_of_the_chain_holds_four_networks_that_beat_a_statue(ended: list[Json]) -> None:
    for job, primary in zip(ended, PRIMARY, strict=True):
        assert job["outcome"] == "succeeded", job["log"]
        metrics = job["result"]["metrics"]
        assert metrics[primary] < metrics[f"baseline_{primary}"], job["log"]
    last = ended[-1]["result"]["metrics"]
    for job, primary in zip(ended, PRIMARY, strict=True):
        assert last[primary] == pytest.approx(job["result"]["metrics"][primary])
    for before, job in pairwise(ended):
        assert f"begins with the weights of job/{before['id']}/best" in job["log"]
