"""``submitit.AutoExecutor(folder, cluster="runner")``: launch scripts written for Slurm run here.

submitit pickles a function into its folder, and reads the result there; jobs see the folder as it is, in
containers by a mount.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from submitit.core import core, logger, utils

from gpu_job_runner import submitit_job
from gpu_job_runner.job import Connection, Job, connect, state_word
from gpu_job_runner.submission import make_spec, send
from runner.base.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = "/data/submitit"
"""Place of the folder in a container, unless it is below ``/data`` on the host, too."""

STATES = {
    "succeeded": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "held": "HELD",
    "running": "RUNNING",
    "stopping": "COMPLETING",
}
"""The states of submitit, which are those of Slurm; all others are PENDING."""


class RunnerInfoWatcher(core.InfoWatcher):  # type: ignore[misc]  # Any to mypy where submitit is absent
    """Asks the daemon about jobs."""

    def update(self) -> None:
        """Ask about all jobs that are not known to have ended; without an answer, what was known stays."""
        try:
            connection = connect()
            for job_id in self._registered - self._finished:
                self._info_dict[job_id] = {"State": _state(connection, job_id)}
        except Unavailable as error:
            logger.get_logger().warning(f"{error}; the states of jobs may be old")
        self._last_status_check = time.time()
        ended = {each for each in self._registered if self.is_done(each, mode="cache")}
        self._finished |= {each for each in ended if self.get_state(each, mode="cache") != STATES["held"]}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return str(self.get_info(job_id, mode=mode).get("State", "UNKNOWN"))


def _state(connection: Connection, job_id: str) -> str:
    try:
        return STATES.get(state_word(connection.job(job_id)), "PENDING")
    except UsageError:  # the store has forgotten it
        return "FORGOTTEN"


class RunnerJob(core.Job[Any]):  # type: ignore[misc]  # as above
    """A job of the runner as submitit shows jobs; its log holds both streams."""

    watcher = RunnerInfoWatcher(delay_s=5)

    def cancel(self, check: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002  the signature of submitit
        connect().act(self.job_id, "cancel", {})

    def _interrupt(self) -> None:
        """Preempt the job: it saves, and continues when it is released."""
        connection = connect()
        connection.act(self.job_id, "hold", {})
        self._runner_job(connection).wait()
        connection.act(self.job_id, "release", {})

    def _get_logs_string(self, name: str) -> str | None:  # noqa: ARG002  one log
        return self._runner_job(connect()).logs(rank=self.task_id or 0)

    def _runner_job(self, connection: Connection) -> Job[Any]:
        return Job(connection.job(self.job_id), connection)


class RunnerExecutor(core.PicklingExecutor):  # type: ignore[misc]  # as above
    """Submits pickled functions as jobs; ``runner_fields`` are more fields of the job file."""

    job_class: ClassVar[type[RunnerJob]] = RunnerJob

    def __init__(self, folder: str | Path, max_num_timeout: int = 3, python: str | None = None) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout)
        self.python = python

    @classmethod
    def name(cls) -> str:
        return "runner"

    @classmethod
    def affinity(cls) -> int:
        """Return that the runner is used where it is named."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"fields"}

    def _submit_command(self, command: str) -> RunnerJob:  # noqa: ARG002  submitit has none for plug-ins
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        in_container = connect().version()["executor"] == "docker"
        fields = job_fields(
            self.parameters, str(self.folder), str(folder), self.python, in_container=in_container
        )
        [job] = send(connect(), make_spec(fields, {}))
        tasks = list(range(self._num_tasks()))
        made: RunnerJob = self.job_class(folder=self.folder, job_id=job.id, tasks=tasks)
        made.paths.folder.mkdir(parents=True, exist_ok=True)
        self._write_job_id(job.id, uuid.uuid4().hex)
        return made

    def _num_tasks(self) -> int:
        return int(self.parameters.get("nodes", 1)) * int(self.parameters.get("tasks_per_node", 1))

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError("nothing is written for the runner")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        raise NotImplementedError("nothing is executed for the runner")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        raise NotImplementedError("nothing is executed for the runner")


def job_fields(
    asked: Mapping[str, Any], folder: str, place: str, python: str | None, *, in_container: bool
) -> dict[str, Any]:
    """Return the job file for the parameters of an executor; ``place`` is the part of the folder without ids.

    Raises:
        UsageError: a parameter is unknown.
    """
    if unknown := asked.keys() - {*KNOWN, "fields"}:
        raise UsageError(f"{min(unknown)}: the runner has no such parameter; use runner_fields")
    target = place if place.startswith("/data/") else FOLDER
    seen = folder.replace(place, target, 1) if in_container else folder
    tasks = int(asked.get("tasks_per_node", 1))
    workload: dict[str, Any] = {
        "kind": "program",
        "command": _command(python or ("python3" if in_container else sys.executable), seen),
        "code": ".",
        **({"launcher": "gang", "processes": tasks} if max(tasks, int(asked.get("nodes", 1))) > 1 else {}),
    }
    resources = {field: make(asked[name]) for name, (field, make) in KNOWN.items() if field and name in asked}
    if "cpus" in resources:
        resources["cpus"] *= tasks
    made: dict[str, Any] = {
        "name": str(asked.get("name", "submitit")),
        "workload": workload,
        "resources": resources,
        "environment": {"SUBMITIT_EXECUTOR": "runner"},
        "checkpoint": {"keep_files": True},  # a function saves by itself, into the folder or beside its code
    }
    if in_container:
        made["image"] = {"requirements": ["submitit"]}
        made["mounts"] = [{"source": place, "target": target, "read_only": False}]
    return merged(made, asked.get("fields", {}))


KNOWN: Mapping[str, tuple[str | None, Any]] = {
    "name": (None, str),
    "nodes": ("nodes", int),
    "tasks_per_node": (None, int),
    "cpus_per_task": ("cpus", float),
    "mem_gb": ("memory", lambda gib: f"{gib}GiB"),
    "gpus_per_node": ("gpus", int),
    "timeout_min": ("time_limit", lambda minutes: f"{minutes}m"),
    "stderr_to_stdout": (None, bool),
}
"""The parameters that submitit has for all clusters, and what each sets below ``resources``."""


def merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of which those above win; lists are joined."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            found[key] = merged(old, value)
        else:
            found[key] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value
    return found


def _command(python: str, folder: str) -> Sequence[str]:
    source = Path(submitit_job.__file__).read_text("utf-8")
    return [os.fspath(python), "-u", "-c", source, folder]
