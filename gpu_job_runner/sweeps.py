"""Sweeps as values: submit one, wait for it, and read what its candidates have reached."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gpu_job_runner.job import LOOK_S, Job, connect
from gpu_job_runner.submission import Options, make_spec, send, try_out
from runner.base.errors import UsageError
from runner.client.http import quote_path

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Unpack

    from gpu_job_runner.job import Connection

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
WAITING: Final = frozenset({"paused", "held"})
"""At a rung for the others, or for a person."""

DECIDES_S: Final = 0.5
"""Between two looks while the daemon decides about a rung."""


class Sweep:
    """One sweep of the daemon; ``jobs`` are its candidates in the order of their numbers."""

    def __init__(self, jobs: list[Job[dict[str, Any]]], connection: Connection) -> None:
        self.jobs = jobs
        self._connection = connection
        self._path = f"/v1/sweeps/{quote_path(jobs[0].id)}"

    def __repr__(self) -> str:
        return f"<Sweep {self.jobs[0].id} of {len(self.jobs)}>"

    def detail(self) -> dict[str, Any]:
        """Return everything that ``runner sweep show --json`` prints."""
        found: dict[str, Any] = self._connection.get(self._path)
        return found

    def candidates(self) -> list[dict[str, Any]]:
        """Return for each candidate its job, state, parameters, step, and values at rungs and at the end."""
        found: list[dict[str, Any]] = self.detail()["candidates"]
        return found

    def wait(self, timeout_s: float | None = None) -> Sweep:
        """Wait until all candidates have ended, or the others wait for those that a person holds.

        Raises:
            TimeoutError: they have not within ``timeout_s``.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        client = self._connection.following(deadline)
        while True:
            states = {each["job"]: each["state"] for each in self.candidates()}
            left_s = LOOK_S if deadline is None else min(deadline - time.monotonic(), LOOK_S)
            going = [job for job, state in states.items() if state not in ENDED | WAITING]
            if not going and (ENDED.issuperset(states.values()) or "held" in states.values()):
                return self
            if left_s <= 0:
                done = sum(state in ENDED for state in states.values())
                raise TimeoutError(
                    f"{self!r}: {done} of {len(states)} candidates ended after {timeout_s:g} s"
                )
            if going:
                client.wait(going[0], left_s)
            else:
                threading.Event().wait(min(DECIDES_S, left_s))

    @property
    def best(self) -> Job[dict[str, Any]] | None:
        """The best candidate of those that have succeeded."""
        found = self.detail()["best"]
        return next((job for job in self.jobs if job.id == found), None)

    def stop(self) -> None:
        """Hold all candidates that run or wait for devices."""
        self._connection.post(f"{self._path}/stop", {})

    def resume(self) -> None:
        """Release the candidates that were held by hand."""
        self._connection.post(f"{self._path}/resume", {})


def sweep(what: str | os.PathLike[str] | Mapping[str, Any], /, **options: Unpack[Options]) -> Sweep:
    """Submit a job file, or its fields, with the section ``sweep``; see ``submit``.

    Raises:
        UsageError: it has no such section, or something in it must be changed.
    """
    spec, connection = make_spec(what, options), connect()
    if not try_out(connection, spec)["job"]["job"].get("sweep"):
        raise UsageError(f"{spec.shown}: sweep: is missing; a job without it is for submit")
    return Sweep(send(connection, spec), connection)
