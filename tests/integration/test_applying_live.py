"""Changes to trainings that really run, in containers: what is kept, resumed, tried out and taken back."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.contract import AttemptSpec, checkpoints
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.workloads.counter_image import counter_image

pytestmark = pytest.mark.engine

STEPS = 10**6
"""Of a training that goes on until it is cancelled, so that no step of it can be missed."""

EITHER_WAY = {0, 3}
"""What was measured decides whether a change is made: on a busy machine it is not."""

FEW = 900
"""In which one that does not go on by itself can be changed."""


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}) as made,
    ):
        yield made.start()
        made.assert_whole()


def training(daemon: Service, name: str, steps: int = STEPS, **fields: Any) -> Path:
    return daemon.training(name, steps, every=200, **fields)


def at_step(daemon: Service, job_id: str, step: int) -> Json:
    def look() -> Json | None:
        found = daemon.job(job_id)
        return found if (found["progress"] or {}).get("step", 0) >= step else None

    return until(look, f"job {job_id} is at step {step}", more=daemon.log_tail)


def apply(daemon: Service, file: Path, *options: str, code: int | set[int] = 0) -> Json:
    *_, answer = daemon.runner("apply", str(file), *options, "--json", code=code).splitlines()
    found: Json = json.loads(answer)
    return found


def leave(daemon: Service, job_id: str, attempt: int) -> Json:
    """Return a job that has been cancelled in an attempt that trains: nothing more is to be seen of it."""

    def trains() -> bool:
        found = daemon.job(job_id)
        return found["attempt"] == attempt and (found["progress"] or {}).get("phase") == "train"

    until(trains, f"attempt {attempt} of job {job_id} trains", more=daemon.log_tail)
    daemon.runner("cancel", job_id)
    return daemon.ends(job_id)


def spec(daemon: Service, job_id: str, attempt: int) -> AttemptSpec:
    return AttemptSpec.model_validate_json(daemon.paths(job_id, attempt).spec.read_bytes())


def test_a_change_that_is_stored_is_taken_up_by_the_next_start_with_the_same_bits(daemon: Service) -> None:
    untouched = daemon.submit(training(daemon, "untouched", FEW))
    job_id = daemon.submit(training(daemon, "kept", FEW))
    at_step(daemon, job_id, 250)
    daemon.freeze(job_id)  # it is to be killed before it ends
    changed = {"extends": "cpu", "threads": 1, "conversion": "each_use"}
    file = training(daemon, "kept", FEW, profile=changed)
    assert apply(daemon, file, code=3)["outcome"] == "keep"
    answer = apply(daemon, file, "--at-next-start")
    assert (answer["class"], answer["same_bits"], answer["outcome"], answer["revision"]) == (
        "B",
        True,
        "store",
        2,
    )
    assert daemon.job(job_id)["attempt"] == 1
    daemon.signal_container(job_id, signal.SIGKILL)
    ended = daemon.ends(job_id)
    assert [spec(daemon, job_id, n).revision for n in (1, 2)] == [1, 2]
    assert spec(daemon, job_id, 2).profile.conversion == "each_use"
    assert ended["result"]["weights_sha256"] == daemon.ends(untouched)["result"]["weights_sha256"]


def test_another_trajectory_is_declined_then_resumed_and_a_new_model_is_rolled_back(daemon: Service) -> None:
    job_id = daemon.submit(training(daemon, "changed", STEPS), end="cancelled")
    at_step(daemon, job_id, 250)
    hotter = training(daemon, "changed", STEPS, workload={"learning_rate": 0.002})
    assert apply(daemon, hotter, code=3)["outcome"] == "decline"
    allowed = training(
        daemon, "changed", STEPS, workload={"learning_rate": 0.002}, allow=["changed_training"]
    )
    assert apply(daemon, allowed)["outcome"] == "resume"
    resumed = until(
        lambda: daemon.job(job_id) if daemon.job(job_id)["attempt"] == 2 else None, "it is resumed"
    )
    assert resumed["attempts"][0]["checkpoint_step"] >= 250
    at_step(daemon, job_id, 600)
    wider = training(
        daemon, "changed", STEPS, workload={"learning_rate": 0.002, "width": 64}, allow=["changed_training"]
    )
    assert apply(daemon, wider, "--approve")["outcome"] == "restart"
    until(
        lambda: daemon.job(job_id)["attempt"] == 3 and daemon.state_of(job_id) == "running", "it begins again"
    )
    assert "back to revision 2, as revision 4" in daemon.runner("rollback", job_id)
    ended = leave(daemon, job_id, 4)
    assert [attempt["lineage"] for attempt in ended["attempts"]] == [1, 1, 2, 1]
    assert ended["attempts"][3]["resumed_from"] >= 600
    assert spec(daemon, job_id, 4).workload == spec(daemon, job_id, 2).workload
    told = [line.split("\t")[:2] for line in daemon.runner("revisions", job_id).splitlines()]
    assert told == [["1", "-"], ["2", "-"], ["3", "-"], ["4", "present"]]
    assert "change" in {
        each["moment"] for each in map(json.loads, daemon.runner("policy", "journal", job_id).splitlines())
    }


def test_a_canary_is_measured_beside_a_training_and_leaves_nothing_in_its_lineage(daemon: Service) -> None:
    job_id = daemon.submit(training(daemon, "tried", environment={"A": "b"}), end="cancelled")
    at_step(daemon, job_id, 250)
    file = training(daemon, "tried", profile={"extends": "cpu", "threads": 1, "optimizer": "loop"})
    answer = apply(daemon, file, "--dry-run", "--canary", "50", code=EITHER_WAY)
    assert answer["econ"]["rate_new"]["mean"] > 0
    assert answer["econ"]["seconds"]["keep"] > 0
    canary = daemon.job("tried-canary")
    assert (canary["outcome"], canary["labels"]) == ("cancelled", {"canary-of": job_id})
    assert canary["attempts"][0]["resumed_from"] >= 200
    ended = leave(daemon, job_id, 1)
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["stopped"]
    made_by = {
        json.loads((path / "manifest.json").read_text())["job_id"]
        for _, path in checkpoints(daemon.paths(job_id).lineage_dir)
    }
    assert made_by == {job_id}


def test_a_job_that_fills_its_machine_makes_room_for_its_canary(daemon: Service) -> None:
    resources = {"cpus": 1, "memory": "40GiB"}
    job_id = daemon.submit(training(daemon, "large", STEPS, resources=resources), end="cancelled")
    at_step(daemon, job_id, 250)
    loop = {"extends": "cpu", "threads": 1, "optimizer": "loop"}
    file = training(daemon, "large", STEPS, resources=resources, profile=loop)
    said = daemon.runner("apply", str(file), "--canary", "50", code=EITHER_WAY)
    assert "there is no room beside the job" in said
    assert "to start again, with the change or without" in said
    ended = leave(daemon, job_id, 2)
    assert ended["attempts"][1]["resumed_from"] >= 250
