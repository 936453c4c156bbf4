"""Jobs that begin with the weights of others: chained by ``queue.after``, and refused where they cannot."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.contract import verify
from tests.fakes.daemon.service import Service, service

pytestmark = pytest.mark.engine

TINY: dict[str, Any] = {
    "kind": "causal_lm",
    "data": "stdlib",
    "include": ["this.py"],
    "steps": 4,
    "batch_size": 2,
    "context": 8,
    "layers": 1,
    "heads": 2,
    "width": 8,
    "eval_every": 2,
    "eval_batches": 1,
}


@pytest.fixture(scope="module")
def daemon(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    assert engine
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker") as made:
        yield made.start()


def job(daemon: Service, name: str, *, after: tuple[str, ...] = (), **changes: Any) -> Path:
    resources = {"cpus": 0.5, "memory": "1GiB"}
    return daemon.file(name, workload={**TINY, **changes}, resources=resources, queue={"after": list(after)})


def final(daemon: Service, job_id: str) -> str | None:
    return verify(daemon.paths(job_id).final_dir).state_sha256


def test_a_chain_of_jobs_hands_its_weights_on(daemon: Service) -> None:
    first = daemon.submit(job(daemon, "first"))
    assert daemon.ends(first)["outcome"] == "succeeded", daemon.log(first)
    file = job(daemon, "second", after=("first",), init_from="job/first/best", learning_rate=1e-30)
    second = daemon.submit(file)
    third = daemon.submit(job(daemon, "third", after=("second",), init_from=f"job/{second}/final"))
    for job_id in (first, second, third):
        assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    assert f"begins with the weights of job/{first}/best, step " in daemon.log(second)
    assert f"begins with the weights of job/{second}/final, step 4" in daemon.log(third)
    assert final(daemon, second) == final(daemon, first), "a tiny learning rate leaves weights as they are"
    assert final(daemon, third) != final(daemon, second)


def test_a_directory_of_weights_is_relative_to_the_job_file(daemon: Service) -> None:
    made = daemon.submit(job(daemon, "made"))
    assert daemon.ends(made)["outcome"] == "succeeded"
    place = Path(daemon.root, "weights of made")
    shutil.copytree(daemon.paths(made).final_dir, place)
    for path in (place, *place.iterdir()):
        path.chmod(0o755)
    file = job(daemon, "begun", init_from=place.name)
    begun = daemon.submit(file)
    assert daemon.ends(begun)["outcome"] == "succeeded"
    assert f"begins with the weights of {file.parent / place.name}, step 4" in daemon.log(begun)


@pytest.mark.parametrize(
    ("written", "fact"),
    [
        ("job/nobody/best", 'there is no job "nobody": no such id, and none of yours has that name'),
        ("no/such/place", "no/such/place: does not exist"),
        (
            "job/waits/final",
            "has not ended; add it to queue.after, so that this job waits for it: after: ",
        ),
        ("job/fails/final", "has not succeeded, so it has no finished model; job/fails/best may be there"),
    ],
)
def test_weights_that_cannot_be_there_are_refused_at_submission(
    daemon: Service, written: str, fact: str
) -> None:
    if written == "job/waits/final":
        daemon.submit(job(daemon, "waits"), "--not-before", "2090-01-01T00:00:00Z", end="queued")
    if written == "job/fails/final":
        failed = daemon.submit(job(daemon, "fails", context=8192, include=["nothing"]), end="failed")
        assert daemon.ends(failed)["outcome"] == "failed"
    said = daemon.runner("submit", str(job(daemon, "asks", init_from=written)), code=2)
    assert "workload.init_from: " in said
    assert fact in said


def test_a_job_whose_predecessor_published_nothing_says_so(daemon: Service) -> None:
    made = daemon.submit(job(daemon, "unevaluated", eval_every=None))
    assert daemon.ends(made)["outcome"] == "succeeded"
    begun = daemon.submit(job(daemon, "vain", init_from=f"job/{made}/best"), end="failed")
    assert daemon.ends(begun)["outcome"] == "failed"
    assert f"workload.init_from: job/{made}/best: no such weights" in daemon.runner("show", begun)


def test_a_file_of_another_code_base_is_where_a_job_begins_and_its_export_comes_back(daemon: Service) -> None:
    made = daemon.submit(job(daemon, "his", export={"format": "state_dict", "prefix": "his."}))
    assert daemon.ends(made)["outcome"] == "succeeded", daemon.log(made)
    place = Path(daemon.root, "his.ckpt")
    shutil.copy(daemon.paths(made).lineage_dir / "export" / "model.pt", place)
    place.chmod(0o644)
    file = job(daemon, "ours", init_from=place.name, init_map={"prefix": "his."}, learning_rate=1e-30)
    begun = daemon.submit(file)
    assert daemon.ends(begun)["outcome"] == "succeeded", daemon.log(begun)
    assert f"begins with the weights of {file.parent / place.name}\n" in daemon.log(begun)
    assert final(daemon, begun) == final(daemon, made)
