"""Reports of ``runner show`` about a training and about a program, in containers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.store import ImageStore
from tests.fakes.daemon.service import Service, service
from tests.fakes.workloads.counter_image import counter_image
from tests.fakes.workloads.writer import assert_the_rate_is_shown, on_a_disk


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}, watch_every_s=0.2) as made,
    ):
        yield made.start()
        made.assert_whole()


@pytest.mark.engine
def test_a_training_in_epochs_with_a_trace_is_shown(daemon: Service) -> None:
    corpus = daemon.root / "corpus"
    corpus.mkdir()
    for path in Path(json.__file__).parent.glob("*.py"):
        shutil.copy(path, corpus)
    file = daemon.file(
        "in-epochs",
        workload={
            "kind": "causal_lm", "data": str(corpus), "epochs": 0.5, "batch_size": 64, "context": 16,
            "layers": 1, "heads": 2, "width": 16, "eval_every": None,
        },
        profile={"trace": {"steps": [3, 5]}},
        resources={"cpus": 1, "memory": "2GiB"},
    )  # fmt: skip
    job_id = daemon.submit(file)
    found = daemon.ends(job_id)
    assert found["outcome"] == "succeeded", daemon.told(job_id)
    epochs = found["epochs"]
    assert found["result"]["step"] == -(-epochs["steps_per_epoch"] // 2)
    assert epochs["total"] == epochs["done"] == found["result"]["step"] / epochs["steps_per_epoch"]
    assert epochs["epoch_s"] > 0
    trace = found["trace"]
    assert (trace["attempt"], trace["first_step"], trace["last_step"]) == (1, 3, 5)
    assert daemon.paths(job_id).trace.stat().st_size > 1000
    lines = daemon.runner("show", job_id).splitlines()
    rows = [line.split("\t") for line in lines if line.startswith("operator\t")]
    assert [row[-1] for row in rows] == [each["name"] for each in trace["operators"]]
    assert any(line.startswith("epochs\t0.5") for line in lines)
    assert any(line.startswith("trace\tsteps 3 to 5, ") for line in lines)


@pytest.mark.engine
def test_a_container_that_writes_is_shown_with_its_rate(daemon: Service) -> None:
    with on_a_disk() as place:
        mount = {"source": str(place), "target": "/data/out", "read_only": False}
        assert_the_rate_is_shown(daemon, "/data/out", image="counter", mounts=[mount])
