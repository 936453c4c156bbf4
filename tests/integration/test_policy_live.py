"""Real ends under the default policy: each is provoked in a container, and looked at from outside."""

import json
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.contract import AttemptSpec, Effective, checkpoints
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.workloads.counter_image import counter_image

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}) as made,
    ):
        yield made.start()
        made.assert_whole()


def program(daemon: Service, name: str, code: str, **fields: Any) -> Path:
    """Write the job file of a Python program of the user's own."""
    directory = daemon.root / f"code-{name}"
    directory.mkdir()
    (directory / "main.py").write_text(textwrap.dedent(code))
    known = {
        "workload": {"kind": "program", "command": ["python3", "main.py"], "code": str(directory)},
        "image": "counter",
        "resources": {"cpus": 1, "memory": "256MiB"},
        "retry": {"backoff": "0s"},
    }
    return daemon.file(name, **{**known, **fields})


def submit(daemon: Service, file: Path, end: str = "succeeded") -> str:
    """Submit a job whose profile draws warnings: what a program makes of it, nobody here can know."""
    *_, answer = daemon.runner("submit", str(file), "--json").splitlines()
    job_id = str(json.loads(answer)["job"]["id"])
    daemon.jobs[job_id] = end
    return job_id


def records(daemon: Service, job_id: str) -> list[Json]:
    return [json.loads(line) for line in daemon.runner("policy", "journal", job_id).splitlines()]


def verdicts(daemon: Service, job_id: str) -> list[tuple[str, str]]:
    """Return verb and rule of every decision about the ends of a job."""
    return [
        (kept["verdict"]["do"], kept["verdict"]["rule"])
        for kept in records(daemon, job_id)
        if kept["moment"] == "exit"
    ]


def spec_of(daemon: Service, job_id: str, attempt: int) -> AttemptSpec:
    return AttemptSpec.model_validate_json(daemon.paths(job_id, attempt).spec.read_bytes())


# --- What the program says


@pytest.mark.parametrize("code", [78, 93])
def test_a_program_that_refuses_or_asks_not_to_be_restarted_is_not_started_again(
    daemon: Service, code: int
) -> None:
    file = program(daemon, f"exits-{code}", f"raise SystemExit({code})")
    job_id = daemon.submit(file, end="failed")
    assert daemon.ends(job_id)["attempt"] == 1
    assert verdicts(daemon, job_id) == [("give_up", "no-restart")]
    said = daemon.runner("policy", "explain", job_id)
    assert "no-restart" in said
    assert f"exit.code = {code}" in said


def test_an_error_at_once_is_tried_once_more_and_one_after_progress_is_not_yet_a_loop(
    daemon: Service,
) -> None:
    at_once, later = (
        daemon.submit(daemon.counting(name, 40, environment={"CRASH_AT": step}), end="failed")
        for name, step in (("at-once", "1"), ("later", "9"))
    )
    assert daemon.ends(at_once)["attempt"] == 2
    assert verdicts(daemon, at_once) == [("restart", "bug"), ("give_up", "bug")]
    assert daemon.ends(later)["attempt"] == 3
    assert verdicts(daemon, later) == [("resume", "other"), ("resume", "bug"), ("give_up", "bug")]


def test_a_loss_that_is_not_finite_is_tried_once_from_before_it_with_a_safer_precision(
    daemon: Service,
) -> None:
    file = daemon.training(
        "diverges",
        40,
        every=1,
        workload={"learning_rate": 1000.0, "warmup_steps": 1},
        profile={"extends": "cpu", "threads": 1, "precision": "bf16"},
    )
    job_id = daemon.submit(file, end="failed")
    ended = daemon.ends(job_id)
    if ended["outcome"] != "failed":
        pytest.fail(f"it did not diverge: {daemon.log(job_id)[-2000:]}")
    assert verdicts(daemon, job_id) == [("resume", "poisoned"), ("give_up", "poisoned")]
    first, second = records(daemon, job_id)
    assert first["facts"]["nan"] is True
    assert first["next"]["settings"] == {"precision": "tf32"}
    assert first["next"]["step"] < daemon.job(job_id)["attempts"][0]["checkpoint_step"]
    assert spec_of(daemon, job_id, 2).profile.precision == "tf32"
    assert second["facts"]["effective.precision"] in {"tf32", "fp32"}


# --- What the machine does to it

OUT_OF_MEMORY = """
    import os, sys
    from pathlib import Path

    import torch

    from jobs import __main__ as trainer
    from jobs.training import step as training
    from jobs.contract.plans.causal_lm import CausalLm
    from jobs.training.failures import DeviceOutOfMemory

    FITS = int(os.environ["FITS"])
    real, read = training.Training._gradients, trainer.read_spec

    def gradients(self, batch, step):
        if self.micro_batch > FITS:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {self.micro_batch} rows")
        return real(self, batch, step)

    def halve(self, problem):
        raise DeviceOutOfMemory(problem)

    def spec(paths):
        plan = CausalLm(data="stdlib", steps=12, batch_size=8, context=32, layers=1, heads=2, width=32,
                        warmup_steps=2, eval_every=None, log_every=1)
        return read(paths).model_copy(update={"workload": plan})

    training.Training._gradients, training.Training._halve, trainer.read_spec = gradients, halve, spec
    numbers = ["--attempt", os.environ["RUNNER_ATTEMPT"], "--lineage", os.environ["RUNNER_LINEAGE"]]
    sys.exit(trainer.main(["--root", os.environ["RUNNER_JOB_DIR"], *numbers]))
"""


def test_a_batch_that_does_not_fit_the_device_is_halved_until_it_does(daemon: Service) -> None:
    """The exception is the real one; only the limit at which it comes is made up."""
    file = program(
        daemon,
        "too-large",
        OUT_OF_MEMORY,
        image="auto",
        resources={"cpus": 1, "memory": "2GiB"},
        profile={"extends": "cpu", "threads": 1, "micro_batch": 8},
        environment={"FITS": "2"},
    )
    job_id = submit(daemon, file)
    ended = daemon.ends(job_id)
    assert ended["outcome"] == "succeeded", daemon.log(job_id)
    assert verdicts(daemon, job_id) == [("restart", "oom-train")] * 2 + [("finish", "done")]
    assert [spec_of(daemon, job_id, n).profile.micro_batch for n in (1, 2, 3)] == [8, 4, 2]
    effective = Effective.model_validate_json(daemon.paths(job_id, 3).effective.read_bytes())
    assert (effective.micro_batch, effective.accumulation) == (2, 4)
    shown = daemon.runner("show", job_id)
    assert "settings\tmicro_batch=2" in shown
    assert "with micro-batch 4 → 2: device out of memory in train" in shown


PER_WORKER = """
    import json, os
    from pathlib import Path
    spec = json.loads((Path(os.environ["RUNNER_ATTEMPT_DIR"]) / "spec.json").read_text())
    workers = spec["profile"]["loader_workers"]
    print("workers", workers, flush=True)
"""
HOST_MEMORY = PER_WORKER + "    kept = [bytes([1]) * 2**20 for _ in range(100 * workers)]\n"
SHARED_MEMORY = (
    PER_WORKER
    + """
    import mmap
    for n in range(workers):
        with open(f"/dev/shm/{n}", "w+b") as file:
            file.truncate(2**20)
            with mmap.mmap(file.fileno(), 2**20) as shared:
                shared[:] = bytes(2**20)
"""
)


@pytest.mark.parametrize(
    ("code", "resources", "cause", "rule"),
    [
        (HOST_MEMORY, {"memory": "256MiB"}, "host_oom", "oom-host"),
        (SHARED_MEMORY, {"memory": "256MiB", "shm": "2MiB"}, "bus_error", "shared-memory"),
    ],
)
def test_memory_that_the_loader_processes_used_up_is_given_back_by_halving_them(
    daemon: Service, code: str, resources: Json, cause: str, rule: str
) -> None:
    profile = {"extends": "cpu", "loader_workers": 8}
    job_id = submit(daemon, program(daemon, rule, code, resources={"cpus": 1, **resources}, profile=profile))
    ended = daemon.ends(job_id)
    causes = [attempt["cause"] for attempt in ended["attempts"]]
    assert causes == [cause, cause, "completed"], daemon.told(job_id)
    assert verdicts(daemon, job_id) == [("restart", rule)] * 2 + [("finish", "done")]
    assert [spec_of(daemon, job_id, n).profile.loader_workers for n in (1, 2, 3)] == [8, 4, 2]


def test_a_program_killed_for_memory_is_given_more_if_the_policy_says_so(daemon: Service) -> None:
    rule = "{name: more, when: {cause: host_oom}, do: resume, with: {memory: 1.5x}, tries: 3}"
    (daemon.root / "more.yaml").write_text(f"policy: 1\nname: more\nextends: default\non_exit: [{rule}]\n")
    code = "kept = bytes([1]) * (160 * 2**20)"
    job_id = submit(
        daemon, program(daemon, "eats", code, resources={"cpus": 1, "memory": "80MiB"}, policy="./more.yaml")
    )
    ended = daemon.ends(job_id)
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["host_oom"] * 2 + ["completed"]
    assert verdicts(daemon, job_id) == [("restart", "more")] * 2 + [("finish", "done")]
    shown = daemon.runner("show", job_id)
    assert "the same HOME, memory 80MiB → 120MiB; the runner" in shown
    assert (
        json.loads(daemon.runner("show", job_id, "--json"))["account"]["asked"]["memory_bytes"] == 180 * 2**20
    )


def test_a_kill_from_outside_is_resumed_where_it_had_saved(daemon: Service) -> None:
    job_id = daemon.submit(daemon.counting("killed", 60, environment={"STAY_AT": "12"}))
    daemon.prints(job_id, "step 12")
    daemon.signal_container(job_id, signal.SIGKILL)
    ended = daemon.ends(job_id)
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["killed", "completed"]
    assert verdicts(daemon, job_id) == [("resume", "other"), ("finish", "done")]
    [first, _] = records(daemon, job_id)
    assert first["facts"]["killed_by"] == "nobody"
    assert first["facts"]["progress.advanced"] is True
    beside = daemon.state / "jobs" / job_id / "attempts" / "1.exit.json"
    assert json.loads(beside.read_text()) == first


# --- Checkpoints


def held_at(daemon: Service, name: str) -> str:
    """Return a job that counts, has saved steps 5 and 10, and stands still."""
    job_id = daemon.submit(daemon.counting(name, 30, environment={"STAY_AT": "12"}))
    daemon.prints(job_id, "step 12")
    return job_id


def tear(path: Path) -> None:
    os.truncate(path / "state.json", 3)


def test_a_torn_newest_checkpoint_is_passed_over(daemon: Service) -> None:
    job_id = held_at(daemon, "torn-newest")
    with (daemon.paths(job_id).lineage_dir / "step-00000010" / "state.json").open("a") as file:
        file.write(" ")  # the program, which verifies nothing, can still read it
    daemon.signal_container(job_id, signal.SIGKILL)
    first = until(lambda: records(daemon, job_id), "a decision")[0]
    assert (first["facts"]["checkpoint.step"], first["facts"]["checkpoint.rejected"]) == (5, 1)
    until(lambda: "resume from step 5: killed" in daemon.told(job_id), "it is told")
    daemon.prints(job_id, "step 12", attempt=2)
    daemon.ends(job_id)


def test_when_all_checkpoints_are_torn_the_job_is_held_until_it_is_released(daemon: Service) -> None:
    job_id = held_at(daemon, "all-torn")
    found = [path for _, path in checkpoints(daemon.paths(job_id).lineage_dir)]
    for path in found:
        tear(path)
    daemon.signal_container(job_id, signal.SIGKILL)
    held = daemon.ends(job_id)
    assert (held["state"], len(found)) == ("held", 2)
    assert held["why"].startswith("checkpoints exist and none is valid: step-")
    assert verdicts(daemon, job_id) == [("hold", "checkpoints-rejected")]
    for path in found:
        (path / "state.json").write_text(json.dumps({"step": int(path.name[5:])}))  # a person mends them
    assert "released" in daemon.runner("release", job_id)
    ended = daemon.ends(job_id)
    assert (ended["outcome"], [a["lineage"] for a in ended["attempts"]]) == ("succeeded", [1, 1])


# --- What people ask for


def test_a_job_that_is_held_saves_and_goes_on_when_it_is_released(daemon: Service) -> None:
    job_id = daemon.submit(daemon.counting("held", 400))
    daemon.prints(job_id, "step 7")
    daemon.runner("hold", job_id)
    held = daemon.ends(job_id)
    assert (held["state"], held["why"].startswith("held by ")) == ("held", True)
    assert held["attempts"][0]["exit_code"] == 75
    daemon.runner("release", job_id)
    daemon.prints(job_id, f"begin at {held['attempts'][0]['checkpoint_step']}", attempt=2)
    daemon.runner("cancel", job_id)
    daemon.jobs[job_id] = "cancelled"
    assert [kept["facts"]["operator.request"] for kept in records(daemon, job_id)][:1] == ["hold"]


def test_the_time_limit_lets_it_save_and_ends_the_job(daemon: Service) -> None:
    resources = {"cpus": 1, "memory": "256MiB", "time_limit": "2s"}
    job_id = daemon.submit(daemon.counting("late", 1000, every=1000, resources=resources), end="failed")
    ended = daemon.ends(job_id)
    assert ended["why"] == "time limit of 2s reached"
    assert ended["attempts"][0]["checkpoint_step"] > 1
    [kept] = records(daemon, job_id)
    assert kept["facts"]["killed_by"] == "deadline"
    assert kept["verdict"]["rule"] == "time-is-up"


# --- A policy of one's own

OWN = """\
policy: 1
extends: default
on_exit:
  - name: mine
    when: {exit.code: 7}
    do: resume
    from: previous
    tries: 1
"""


def test_a_policy_of_ones_own_is_pinned_when_the_job_is_submitted(daemon: Service) -> None:
    (daemon.root / "own.yaml").write_text(OWN)
    (daemon.root / "own.yaml").chmod(0o644)
    code = """
        import os, time
        from pathlib import Path
        while not Path(os.environ["RUNNER_JOB_DIR"], "home", "go").exists():
            time.sleep(0.02)
        raise SystemExit(7)
    """
    job_id = daemon.submit(program(daemon, "pinned", code, policy="./own.yaml"), end="failed")
    daemon.reaches(job_id, "running")
    (daemon.root / "own.yaml").write_text("policy: 1\non_exit: [{name: no, when: {}, do: give_up}]\n")
    (daemon.paths(job_id).home / "go").touch()
    daemon.ends(job_id)
    assert verdicts(daemon, job_id) == [("restart", "mine"), ("give_up", "mine")]
    assert "restart by rule mine" in daemon.runner("policy", "explain", job_id, "1")


def test_a_mistake_in_a_policy_of_ones_own_is_told_with_its_place(daemon: Service) -> None:
    path = daemon.root / "wrong.yaml"
    path.write_text(OWN.replace("exit.code", "exit.cod"))
    path.chmod(0o644)
    file = program(daemon, "mistaken", "", policy="./wrong.yaml")
    for command in ("submit", "validate"):
        said = daemon.runner(command, str(file), code=2)
        assert f'{path}:5:12: on_exit[0].when."exit.cod": there is no such fact' in said
