"""The runner's queue with plain processes, as one of the compared queues."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from pathlib import Path

from bench.rivals.protocol import REST_LIMIT_S, Queue, run_command
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.jobfile import CPUS
from runner.client.client import Client


@contextmanager
def running_queue(directory: Path) -> Iterator[Queue]:
    """Yield a daemon that runs programs as processes of this host; stop it at the end."""
    with running_daemon(directory, "process") as daemon:
        yield RunnerQueue(daemon)


@dataclass(slots=True)
class RunnerQueue:
    """Satisfies ``bench.rivals.protocol.Queue``."""

    daemon: BenchDaemon
    _files: dict[tuple[tuple[str, ...], int], Path] = field(default_factory=dict)

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        return self.daemon.submit(self._file(argv, slots))

    def submit_typed(self, argv: Sequence[str]) -> str:
        job = self.daemon.next_id()
        run_command([*runner_command(), "submit", str(self._file(argv, 1))], self.daemon.environment)
        return job

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        client = self.daemon.client
        for job in jobs[-CPUS:]:  # jobs begin in order of submission
            interleave.wait_for("the end of our jobs", partial(_has_ended, client, job), REST_LIMIT_S, 0.05)

    def _file(self, argv: Sequence[str], slots: int) -> Path:
        """Return the path of a job file for a command; equal commands share a file."""
        known = (tuple(argv), slots)
        if known not in self._files:
            name = f"job-{len(self._files)}"
            self._files[known] = self.daemon.write(job_file(name, argv, slots), f"{name}.yaml")
        return self._files[known]


def _has_ended(client: Client, job: str) -> bool:
    return client.job(job)["state"] == "finished"


def job_file(name: str, argv: Sequence[str], slots: int) -> str:
    """Return the job file of a program that needs ``slots`` slots and little memory."""
    return f"""\
name: {name}
workload:
  kind: program
  command: {dumps(list(argv))}
resources:
  cpus: {slots}
  memory: 64MiB
"""
