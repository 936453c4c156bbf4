import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_job_runner.attach import Told, told
from jobs.contract import AttemptSpec, CheckpointPlan, Program, RunPaths, Tracking
from jobs.contract.plans.causal_lm import CausalLm
from runner.agent.attempts.program import apply_program, variables
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner
from runner.files.own_project import OwnProject


def request() -> LaunchRequest:
    return LaunchRequest(
        key=Key("i", "j-1", 2),
        job_name="mine",
        owner=Owner(1001, 1001, "ann"),
        image="sha256:1",
        argv=("python", "-m", "jobs"),
        run_dir=Path("/state/jobs/j-1"),
        log=Path("/state/jobs/j-1/attempts/2/log.txt"),
        limits=Limits(1.0, 1024**3, 1024**2),
        environment={"MINE": "1"},
    )


def spec(**fields: object) -> AttemptSpec:
    known = {"job_id": "j-1", "attempt": 2, "lineage": 3, "workload": Program(command=("./go",))}
    return AttemptSpec.model_validate({**known, **fields})


def test_the_built_in_workloads_are_apply_program_as_before() -> None:
    assert apply_program(request(), spec(workload=CausalLm(data="stdlib")), in_container=True) == request()


def test_a_program_is_its_own_command_in_its_own_code() -> None:
    plan = Program(command=("python", "train.py"), code="/code")
    made = apply_program(request(), spec(workload=plan), in_container=True)
    assert made.argv == ("python", "train.py")
    assert str(made.directory) == "/code"
    assert (made.image, made.owner, made.log) == (request().image, request().owner, request().log)


def test_a_program_without_code_starts_in_the_run_directory() -> None:
    assert apply_program(request(), spec(), in_container=True).directory is None


@pytest.mark.parametrize(("in_container", "root"), [(True, "/job"), (False, "/state/jobs/j-1")])
def test_paths_are_as_the_program_sees_them(*, in_container: bool, root: str) -> None:
    environment = apply_program(request(), spec(), in_container=in_container).environment
    assert environment["RUNNER_JOB_DIR"] == root
    assert environment["RUNNER_ATTEMPT_DIR"] == f"{root}/attempts/2"
    assert environment["RUNNER_CHECKPOINT_DIR"] == f"{root}/lineages/3"
    assert environment["MINE"] == "1"


def test_as_a_process_python_is_the_one_that_has_jobs() -> None:
    path = apply_program(request(), spec(), in_container=False).environment["PATH"]
    assert path.split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert "PATH" not in apply_program(request(), spec(), in_container=True).environment


def test_a_path_of_python_is_no_variable_of_the_container_and_projects_are_where_the_code_is() -> None:
    """A hook of the engine that runs as root reads the variables of the container."""
    plan = Program(command=("train", "--lr"), code="/code")
    given = replace(request(), environment={"MINE": "1", "PYTHONPATH": "lib"})
    own = (OwnProject("libs/a", "a", "1", ()),)
    made = apply_program(given, spec(workload=plan), in_container=True, own=own)
    assert "PYTHONPATH" not in made.environment
    *_, program, directory, projects, path, dashes, first, last = made.argv
    assert (program, directory) == ("/job/attempts/2.own.py", "/job/attempts/2/own")
    assert json.loads(projects)[0]["directory"] == "/code/libs/a"
    assert (path, dashes, first, last) == ("lib", "--", "train", "--lr")
    alone = apply_program(given, spec(), in_container=False).argv
    assert alone[-5:] == ("/state/jobs/j-1/attempts/2/own", "[]", "lib", "--", "./go")


def test_what_is_not_so_is_not_there() -> None:
    plain = variables(spec(), Program(command=("x",)), RunPaths(Path("/job"), 2, 3))
    unsaid = {"RUNNER_STEPS", "RUNNER_RESUME_STEP", "RUNNER_SAVE_EVERY_STEPS", "RUNNER_DEVICE_BYTES"}
    assert not unsaid & plain.keys()
    assert all("None" not in value for value in plain.values())


def test_a_program_that_shares_a_device_finds_its_part() -> None:
    plan = Program(command=("x",))
    told = variables(spec(device_bytes=8 * 1024**3), plan, RunPaths(Path("/job"), 2, 3))
    assert told["RUNNER_DEVICE_BYTES"] == "8589934592"


def test_attach_understands_every_word() -> None:
    plan = Program(command=("x",), steps=900)
    saving = CheckpointPlan(
        every_steps=5, every_s=2.5, mean_between_s=7.5, keep=4, milestone_every=100, pauses=(9,)
    )
    full = spec(workload=plan, checkpoint=saving, resume_step=40, seed=8, revision=6)
    heard = told(variables(full, plan, RunPaths(Path("/job"), 2, 3)), Told(Path("elsewhere")))
    assert heard == Told(
        checkpoint_dir=Path("/job/lineages/3"),
        attempt_dir=Path("/job/attempts/2"),
        job_id="j-1",
        revision=6,
        attempt=2,
        lineage=3,
        seed=8,
        steps=900,
        resume_step=40,
        save_every_steps=5,
        save_every_s=2.5,
        mean_between_s=7.5,
        keep=4,
        milestone_every=100,
        pauses=(9,),
    )


def test_the_contract_names_every_variable_of_a_program() -> None:
    plan = Program(command=("x",), steps=900)
    saving = CheckpointPlan(
        every_steps=5, every_s=2.5, mean_between_s=7.5, keep=4, milestone_every=100, pauses=(9,)
    )
    full = spec(
        workload=plan, checkpoint=saving, resume_step=40, device_bytes=1, track=Tracking(tensorboard=True)
    )
    below = (
        (Path(__file__).parents[5] / "docs/reference/environment.md").read_text().partition("## Programs")[2]
    )
    named = re.findall(r"^\| `(\w+)` \|", below, re.MULTILINE)
    told = variables(full, plan, RunPaths(Path("/job"), 2, 3))
    of_job = [
        "RUNNER_CODE_DIGEST",
        "RUNNER_GIT_COMMIT",
        "RUNNER_SECRETS_DIR",
        "RUNNER_SECRET_ENV",
        "RUNNER_UMASK",
    ]
    with_checkpoints = ["RUNNER_RESUME_FROM"]
    assert sorted(named) == sorted([*told, *of_job, *with_checkpoints])
