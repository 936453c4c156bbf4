"""From a job file to a trained model: a real daemon, real containers, real training on the CPU."""

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.contract import Effective, Result, checkpoints, verify
from runner.adapters.docker.hardening import find_differences
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.workloads.counter_image import counter_image

pytestmark = pytest.mark.engine

STEPS = 24


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One daemon for all of them, with the image of the trainer made before."""
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}) as made,
    ):
        yield made.start()
        made.assert_whole()


@pytest.fixture(scope="module")
def trained(daemon: Service) -> Json:
    """A job that was trained to its end, as ``submit --wait`` left it."""
    said = daemon.runner("submit", str(daemon.training("trained", STEPS)), "--wait")
    assert "trained: succeeded: completed; weights sha256 " in said
    job = daemon.job("trained")
    daemon.jobs[job["id"]] = "succeeded"
    return job


# --- one training, from the file to the model


def test_a_submitted_job_is_trained_and_tells_everything_about_it(daemon: Service, trained: Json) -> None:
    paths = daemon.paths(trained["id"])
    result = Result.model_validate_json(paths.result.read_bytes())
    effective = Effective.model_validate_json(paths.effective.read_bytes())
    metrics = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert (result.cause, result.step, result.resumed_from) == ("completed", STEPS, None)
    assert (effective.device, effective.precision, effective.threads) == ("cpu", "fp32", 1)
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert trained["result"]["weights_sha256"] == result.weights_sha256
    [attempt] = trained["attempts"]
    assert (attempt["exit_code"], attempt["cause"], attempt["checkpoint_step"]) == (0, "completed", STEPS)


def test_the_newest_checkpoints_and_the_model_are_there_and_whole(daemon: Service, trained: Json) -> None:
    lineage = daemon.paths(trained["id"]).lineage_dir
    assert [step for step, _ in checkpoints(lineage)] == [24, 20, 15]
    for _, directory in checkpoints(lineage):
        verify(directory)
    assert verify(lineage / "final").state_sha256 == trained["result"]["weights_sha256"]


def test_the_log_is_complete_from_the_first_line_to_the_last(daemon: Service, trained: Json) -> None:
    lines = daemon.runner("logs", "trained").splitlines()
    assert lines[0] == f"job {trained['id']}, revision 1, attempt 1, lineage 1"
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert steps == [f"{step}/{STEPS}" for step in range(1, STEPS + 1)]
    assert lines[-1] == f"finished at step {STEPS}: weights sha256 {trained['result']['weights_sha256']}"
    assert daemon.runner("logs", "-f", "trained").splitlines() == lines


def test_every_step_of_its_life_is_told_in_order(daemon: Service, trained: Json) -> None:
    kinds = [event["kind"] for event in daemon.events(trained["id"])]
    assert kinds[:5] == ["submitted", "image_ready", "placed", "launched", "exited"]


# --- beginning again


@pytest.mark.parametrize(("start", "resumed_from", "lineage"), [("15", 15, 1), ("scratch", None, 2)])
def test_a_restart_from_anywhere_ends_with_the_same_bits(
    daemon: Service, trained: Json, start: str, resumed_from: int | None, lineage: int
) -> None:
    before = daemon.job("trained")["attempt"]
    daemon.runner("restart", "trained", "--from", start)
    job = daemon.ends("trained")
    newest = job["attempts"][-1]
    assert (newest["number"], newest["resumed_from"], newest["lineage"]) == (
        before + 1,
        resumed_from,
        lineage,
    )
    assert job["result"]["weights_sha256"] == trained["result"]["weights_sha256"]


def test_a_restart_from_the_newest_checkpoint_of_a_running_job_saves_and_goes_on_from_there(
    daemon: Service,
) -> None:
    job_id = daemon.submit(daemon.counting("again", 20, every=1000, environment={"STAY_AT": "10"}))
    daemon.runs(job_id, "step 3")
    daemon.runner("restart", job_id)
    job = daemon.ends(job_id)
    saved = job["attempts"][0]["checkpoint_step"]
    assert [(a["cause"], a["exit_code"]) for a in job["attempts"]] == [("stopped", 75), ("completed", 0)]
    assert (job["attempts"][1]["resumed_from"], saved >= 3) == (saved, True)


def test_a_restart_from_a_step_that_is_not_there_is_refused_with_those_that_are(daemon: Service) -> None:
    job_id = daemon.submit(daemon.training("nowhere", 3))
    before = daemon.ends(job_id)
    daemon.runner("restart", job_id, "--from", "17", code=3)
    assert daemon.job(job_id) == before
    daemon.runner("restart", job_id, "--from", "3")
    assert daemon.ends(job_id)["attempts"][-1]["resumed_from"] == 3


# --- being asked to stop, and to save


def test_at_its_time_limit_a_job_saves_and_fails_with_the_reason(daemon: Service) -> None:
    resources = {"cpus": 1, "memory": "256MiB", "time_limit": "1s"}
    job_id = daemon.submit(daemon.counting("limited", 1000, every=1000, resources=resources), end="failed")
    job = daemon.ends(job_id)
    assert job["why"] == "time limit of 1s reached"
    assert (job["attempts"][0]["exit_code"], job["attempts"][0]["checkpoint_step"] > 1) == (75, True)
    daemon.runner("wait", job_id, code=10)


def test_a_longer_time_limit_and_a_refusal_to_give_way_apply_to_what_runs(daemon: Service) -> None:
    limited = {"cpus": 1, "memory": "256MiB", "time_limit": "16s"}
    job_id = daemon.submit(daemon.counting("more", 400, resources=limited))
    daemon.runs(job_id, "step 3")
    longer: dict[str, Any] = {"resources": {**limited, "time_limit": "10m"}, "queue": {"preemptible": False}}
    told = daemon.runner("apply", str(daemon.counting("more", 400, **longer)))
    assert "queue.preemptible and resources.time_limit apply at once" in told
    why = daemon.runner("why", job_id)
    assert "cannot be preempted now: queue.preemptible is false" in why
    job = daemon.ends(job_id)
    (attempt,) = job["attempts"]
    assert job["outcome"] == "succeeded", job["why"]
    began, ended = (datetime.fromisoformat(attempt[name]) for name in ("launched_at", "ended_at"))
    assert ended - began > timedelta(seconds=16), "it needed no more than its old limit, which shows nothing"


def test_a_cancelled_training_saves_before_it_leaves(daemon: Service) -> None:
    larger = {"batch_size": 8, "context": 64, "width": 64}
    job_id = daemon.submit(daemon.training("unwanted", 5000, every=5000, workload=larger), end="cancelled")
    until(lambda: "\nstep 3/" in daemon.log(job_id), "it trains", more=lambda: daemon.log(job_id))
    daemon.runner("cancel", job_id)
    job = daemon.ends(job_id)
    saved = job["attempts"][0]["checkpoint_step"]
    assert job["attempts"][0]["exit_code"] == 75
    assert f"asked to stop; saved at step {saved}" in daemon.log(job_id)


def test_a_program_that_does_not_listen_is_killed_after_its_grace(daemon: Service) -> None:
    deaf = daemon.counting("deaf", 100_000, environment={"ON_TERM": "ignore"}, stop_grace="1s")
    job_id = daemon.submit(deaf, end="cancelled")
    daemon.prints(job_id, "step 3")
    daemon.runner("cancel", job_id)
    assert daemon.ends(job_id)["attempts"][0]["exit_code"] == 137
    assert "still alive after 1s of grace; sending SIGKILL" in daemon.told(job_id)


def test_usr1_saves_and_the_training_goes_on(daemon: Service) -> None:
    larger = {"batch_size": 8, "context": 64, "width": 64}
    job_id = daemon.submit(daemon.training("saves", 5000, every=5000, workload=larger), end="cancelled")
    until(lambda: "\nstep 3/" in daemon.log(job_id), "it trains", more=lambda: daemon.log(job_id))
    daemon.runner("kill", "--signal", "USR1", job_id)
    until(lambda: saved(daemon.log(job_id)), "it saves", more=lambda: daemon.log(job_id))
    [step] = saved(daemon.log(job_id))
    until(lambda: f"\nstep {step + 1}/" in daemon.log(job_id), "it goes on")
    daemon.runner("cancel", job_id)
    assert daemon.ends(job_id)["attempt"] == 1
    assert "USR1 requested by" in daemon.told(job_id)


def saved(log: str) -> list[int]:
    """Return the steps of the checkpoints that a training says it has saved."""
    return [int(line.split()[3]) for line in log.splitlines() if line.startswith("checkpoint of step ")]


# --- what goes wrong again and again


def test_a_crash_loop_is_stopped_by_the_brake_and_says_so(daemon: Service) -> None:
    job_id = daemon.submit(daemon.counting("loops", 40, environment={"CRASH_AT": "9"}), end="failed")
    job = daemon.ends(job_id)
    again = f"`runner restart {job_id} --from scratch` begins without it"
    why = (
        "exception in train, and its one retry is used "
        f"(it has saved nothing newer than its checkpoint; {again}): exit code 1"
    )
    assert (job["attempt"], job["why"]) == (3, why)
    assert [a["checkpoint_step"] for a in job["attempts"]] == [5, 5, 5]
    assert why in daemon.runner("wait", job_id, code=10)


def test_waiting_tells_by_its_exit_code_how_it_ended(daemon: Service, trained: Json) -> None:
    job_id = daemon.submit(daemon.counting("long", 100_000), end="cancelled")
    daemon.runner("wait", str(trained["id"]))
    daemon.runner("wait", job_id, "--timeout", "0.2s", code=124)
    daemon.runner("cancel", job_id)
    daemon.runner("wait", str(trained["id"]), job_id, code=11)
    assert "no-such-job" in daemon.runner("wait", "no-such-job", code=2)


# --- what the engine was told


def test_a_dry_run_is_what_the_engine_gets(daemon: Service) -> None:
    file = daemon.counting("real", 100_000)
    plan = daemon.answer("submit", "--dry-run", "--json", str(file))
    job_id = daemon.submit(file, end="cancelled")
    daemon.prints(job_id, "step 1")
    [inspected] = daemon.containers(job_id)
    daemon.runner("cancel", job_id)
    asked = filled_in(plan["engine"], job_id, inspected)
    assert find_differences(asked, inspected) == []
    assert asked["name"] == inspected["Name"].removeprefix("/")
    spec = json.loads(daemon.paths(job_id).spec.read_text())
    measured = {"mean_between_s": spec["checkpoint"]["mean_between_s"]}  # goes on while we look
    assert {
        **plan["spec"],
        "job_id": job_id,
        "checkpoint": {**plan["spec"]["checkpoint"], **measured},
    } == spec


def filled_in(plan: Any, job_id: str, inspected: Json) -> Json:
    """Return a plan with the job's number and the image's id, which nobody knows before."""
    name = plan["name"].rsplit("-", 2)
    text = json.dumps(plan).replace("/jobs/0", f"/jobs/{job_id}")
    asked: Json = json.loads(text)
    asked["name"] = f"{name[0]}-{job_id}-{name[2]}"
    asked["config"]["Image"] = inspected["Config"]["Image"]
    asked["config"]["Labels"]["runner.job"] = job_id
    return asked


def test_secrets_are_files_for_the_job_alone_and_gone_when_it_ends(daemon: Service) -> None:
    source = daemon.root / "key.txt"
    source.write_text("hush-hush-4711\n")
    source.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(source, 65532, 65532)  # of root's jobs, for a daemon in two parts
    job_id = daemon.submit(daemon.counting("keeps", 100_000, secrets={"key": "key.txt"}), end="cancelled")
    daemon.prints(job_id, "secret key: mode 0400, mine, 15 bytes")
    [inspected] = daemon.containers(job_id)
    assert "hush-hush-4711" not in json.dumps(inspected)
    copies = daemon.paths(job_id).root / "secrets"
    assert [(path.stat().st_mode & 0o777, path.stat().st_uid) for path in copies.iterdir()] == [
        (0o400, int(inspected["Config"]["User"].partition(":")[0]))
    ]
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)
    until(lambda: not copies.exists(), "the copies are gone")
    assert holders(daemon.state, b"hush-hush-4711") == []
    assert source.read_text() == "hush-hush-4711\n"


def holders(directory: Path, secret: bytes) -> list[Path]:
    """Return the files below a directory that hold a secret."""
    return [path for path in directory.rglob("*") if path.is_file() and secret in path.read_bytes()]
