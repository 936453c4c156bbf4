"""Our own queue, with plain processes, as one of the queues that are compared."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from json import dumps
from pathlib import Path

from bench.rivals.protocol import REST_LIMIT_S, Queue, answer
from bench.support import interleave as rounds
from bench.support.daemon import Stage, command, stage
from bench.support.jobfile import CPUS
from runner.client.client import Client


@contextmanager
def working(directory: Path) -> Iterator[Queue]:
    """Give a daemon that runs programs as processes of this host; afterwards it is gone."""
    with stage(directory, "process") as here:
        yield Ours(here)


@dataclass(slots=True)
class Ours:
    """Satisfies ``bench.rivals.protocol.Queue``."""

    here: Stage
    _files: dict[tuple[tuple[str, ...], int], Path] = field(default_factory=dict)

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        return self.here.submit(self._file(argv, slots))

    def typed(self, argv: Sequence[str]) -> str:
        job = self.here.next_id()
        answer([*command(), "submit", str(self._file(argv, 1))], self.here.environment)
        return job

    def come_to_rest(self, jobs: Sequence[str]) -> None:
        client = self.here.client
        for job in jobs[-CPUS:]:  # they begin in the order in which they came
            rounds.wait_for("the end of our jobs", partial(_ended, client, job), REST_LIMIT_S, 0.05)

    def _file(self, argv: Sequence[str], slots: int) -> Path:
        """Return a job file for a command; the same one for the same command."""
        known = (tuple(argv), slots)
        if known not in self._files:
            name = f"job-{len(self._files)}"
            self._files[known] = self.here.write(program(name, argv, slots), f"{name}.yaml")
        return self._files[known]


def _ended(client: Client, job: str) -> bool:
    return client.job(job)["state"] == "finished"


def program(name: str, argv: Sequence[str], slots: int) -> str:
    """Return the job file of a program that needs some slots and hardly any memory."""
    return f"""\
name: {name}
workload:
  kind: program
  command: {dumps(list(argv))}
resources:
  cpus: {slots}
  memory: 64MiB
"""
