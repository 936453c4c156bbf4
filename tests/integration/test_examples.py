"""The examples, shortened and on small sets: in its container, each beats the rule that needs no model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from images.store import ImageStore
from scripts.examples import EXCLUDED
from tests.fakes.daemon.service import Json, Service, service
from tests.fakes.workloads.small_sets import small_set

pytestmark = pytest.mark.engine

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Short:
    """Short run of an example: its steps, and the error that is then below the trivial one."""

    steps: int
    error: str = "eval_loss"


SHORT: Final = {
    "causal_lm": Short(40),
    "causal_lm_text": Short(80),
    "demo": Short(40),
    "graph_forecast": Short(80),
    "imu_stream": Short(40, "eval_mse"),
    "pair_classifier": Short(15),
    "pair_classifier_sequence": Short(30),
    "resident_transformer": Short(80),
    "graph_forecast_panel": Short(60),
    "resident_transformer_annotations": Short(50),
}

SHIPPED: Final = ("stdlib", "synthetic-panel", "synthetic-annotations")
"""Data that nobody must prepare."""

ELSEWHERE: Final = {
    "causal_lm_minimal": "its fields are defaults, and causal_lm trains the same",
    "distributed": "tests/integration/process/jobs/test_distributed_programs.py trains its program",
    "evaluate": "it trains nothing",
    "imu_stream_body": "tests/integration/test_body_chain.py",
    "imu_stream_body_finetune": "tests/integration/test_body_chain.py trains the chain that it follows",
    "imu_stream_body_foot_contact": "tests/integration/test_body_chain.py",
    "imu_stream_body_poser": "tests/integration/test_body_chain.py",
    "imu_stream_body_velocity": "tests/integration/test_body_chain.py",
    "matrix": "five of the same as causal_lm, with other rates",
    "program": "tests/integration/test_programs.py trains its program",
    "with_everything": "defaults, and causal_lm trains the same",
}
"""Examples that are not shortened here, with the reason; ``make examples`` runs them as shipped."""


@pytest.fixture(scope="module")
def ended(
    engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Json]]:
    """Every example as it ended, all of them submitted at once."""
    assert engine
    assert base_image
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker") as daemon:
        daemon.start()
        ids = {kind: daemon.submit(daemon.file(**shortened(daemon, kind))) for kind in SHORT}
        yield {kind: {**daemon.ends(job_id), "log": daemon.log(job_id)} for kind, job_id in ids.items()}


def shortened(daemon: Service, kind: str) -> dict[str, Any]:
    """Return an example with fewer steps, on a small set in place of one that must be prepared."""
    fields: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{kind}.yaml").read_text())
    steps = SHORT[kind].steps
    workload = fields["workload"] | {
        "steps": steps,
        "eval_every": steps,
        "eval_batches": 4,
        "warmup_steps": 5,
    }
    workload.pop("epochs", None)
    if workload["data"] not in SHIPPED:
        workload["data"] = str(small_set(workload["kind"], daemon.root / kind))
    return {**fields, "workload": workload, "resources": {"cpus": 1, "memory": "2GiB"}}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_trained_here_or_named_with_the_reason(name: str) -> None:
    assert [name in each for each in (SHORT, ELSEWHERE, EXCLUDED)].count(True) == 1


@pytest.mark.parametrize("kind", SHORT)
def test_an_example_trains_in_its_container_and_beats_the_trivial_predictor(
    kind: str, ended: dict[str, Json]
) -> None:
    job, short = ended[kind], SHORT[kind]
    assert (job["outcome"], job["attempt"]) == ("succeeded", 1), job["log"]
    metrics = job["result"]["metrics"]
    assert job["result"]["step"] == short.steps
    assert metrics[short.error] < metrics[f"baseline_{short.error}"], job["log"]
