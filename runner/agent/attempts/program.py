"""Start of a program of the user's own: its command, its place, its environment.

The built-in trainer reads ``spec.json``; a program may be a shell script, so what it needs
is said in variables (``docs/reference/environment.md``).  This module is pure: no path is opened.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Final

from jobs.contract import JOB_DIR, AttemptSpec, Program, RunPaths
from runner.agent.attempts.inside import MAIN, gang_command, own_command, terminal_command
from runner.core.ports.executor import LaunchRequest
from runner.files.own_project import OwnProject
from runner.files.revision import Revision

PATH: Final = "PYTHONPATH"
"""The path of a program, which it gets when it has started: a hook that runs as root must not see it."""


def apply_program(
    request: LaunchRequest,
    spec: AttemptSpec,
    *,
    in_container: bool,
    environment: Path | None = None,
    own: Sequence[OwnProject] = (),
) -> LaunchRequest:
    """Return the request with the program's own command, place and variables; others as they are.

    Args:
        request: The request.
        spec: What is launched.
        in_container: Whether it runs in a container.
        environment: A virtual environment of this host with the packages of the job.
        own: The projects in the code of the job whose sources are on the path of the program.
    """
    plan = spec.workload
    if not isinstance(plan, Program):
        return request
    paths = RunPaths(JOB_DIR if in_container else request.run_dir, spec.attempt, spec.lineage)
    places = {} if in_container else _places(environment)
    argv = plan.command
    if plan.launcher == "gang":
        argv = gang_command(paths, plan.processes, argv, in_container=in_container)
    if plan.terminal:
        argv = terminal_command(paths, MAIN, argv, in_container=in_container, is_main=True)
    environment_of_job = {**request.environment}
    path = environment_of_job.pop(PATH, "")
    if own or path:
        code = PurePosixPath("/" if plan.code is None else plan.code.path)
        placed = [{**asdict(each), "directory": str(code / each.directory)} for each in own]
        argv = own_command(paths, json.dumps(placed), path, argv, in_container=in_container)
    return replace(
        request,
        argv=argv,
        directory=None if plan.code is None else PurePosixPath(plan.code.path),
        environment={**environment_of_job, **places, **variables(spec, plan, paths)},
    )


def needs_own_path(revision: Revision) -> bool:
    """Return True if the program of a job has a path of Python of its own."""
    return bool(revision.own) or PATH in revision.job.environment


def locate_working_directory(spec: AttemptSpec, paths: RunPaths) -> AttemptSpec:
    """Return the spec of a program whose working directory is seen where it is on the host."""
    plan = spec.workload
    if not isinstance(plan, Program) or plan.code is None:
        return spec
    code = plan.code.model_copy(update={"path": str(paths.work_dir)})
    return spec.model_copy(update={"workload": plan.model_copy(update={"code": code})})


def variables(spec: AttemptSpec, plan: Program, paths: RunPaths) -> Mapping[str, str]:
    """Return the variables of a program; those without a value are left out."""
    said = {
        "RUNNER_JOB_ID": spec.job_id,
        "RUNNER_REVISION": spec.revision,
        "RUNNER_ATTEMPT": spec.attempt,
        "RUNNER_LINEAGE": spec.lineage,
        "RUNNER_SEED": spec.seed,
        "RUNNER_STEPS": plan.steps,
        "RUNNER_JOB_DIR": paths.root,
        "RUNNER_ATTEMPT_DIR": paths.attempt_dir,
        "RUNNER_CHECKPOINT_DIR": paths.lineage_dir,
        "RUNNER_RESUME_STEP": spec.resume_step,
        "RUNNER_SAVE_EVERY_STEPS": spec.checkpoint.every_steps,
        "RUNNER_SAVE_EVERY_S": spec.checkpoint.every_s,
        "RUNNER_MEAN_BETWEEN_S": spec.checkpoint.mean_between_s,
        "RUNNER_PAUSES": ",".join(map(str, spec.checkpoint.pauses)) or None,
        "RUNNER_KEEP": spec.checkpoint.keep,
        "RUNNER_MILESTONE_EVERY": spec.checkpoint.milestone_every,
        "RUNNER_ACCELERATOR": spec.accelerator,
        "RUNNER_CPUS": spec.cpus,
        "RUNNER_DEVICE_BYTES": spec.device_bytes,
        "RUNNER_TRACK": None if spec.track is None else spec.track.model_dump_json(),
    }
    return {name: str(value) for name, value in said.items() if value is not None}


_OWN: Final = str(PurePosixPath(sys.executable).parent)


def _places(environment: Path | None) -> dict[str, str]:
    """Return the places of programs of this host; ``python`` is the one that has ``jobs``."""
    path = os.pathsep.join((_OWN, os.environ.get("PATH", os.defpath)))
    if environment is None:
        return {"PATH": path}
    return {"PATH": f"{environment}/bin{os.pathsep}{path}", "VIRTUAL_ENV": str(environment)}
