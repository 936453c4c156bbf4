"""Short attempts of ``runner tune``: jobs that are cancelled when they have shown their rate."""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from runner.base.errors import RunnerError
from runner.base.units import parse_duration
from runner.cli.console import complain
from runner.cli.placing import placed
from runner.cli.run_follow import Interrupts
from runner.cli.tune.candidates import job_fields
from runner.cli.tune.search import ShortAttempt
from runner.cli.wait import await_end
from runner.client.http import query_string, quote_path
from runner.services.rollout.throughput import MetricsLine, parse_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runner.cli.bench.variants import BenchmarkJob
    from runner.cli.tune.search import Variations
    from runner.client.client import Client
    from runner.client.types import JobDetail

LOOK_S: Final = 0.5
"""Between two looks at an attempt; a heartbeat is as old at most."""

LEAST: Final = 8
"""Steps that an attempt is watched for at least; it need not report each of them."""

UNSTEADY: Final = 0.25
"""The share of the first steps that is left out: caches fill, threads start."""

MAX_REPORT_BYTES: Final = 16 * 1024 * 1024  # of one report; a program writes it, so it is untrusted
LATER_S: Final = 60.0
"""Time for which an attempt may outlive this command, if that is killed."""

FIRST_LINES: Final = 200
ONCE: Final = {"every": "1d", "every_steps": None, "milestone_every": None}
"""Checkpoint interval of an attempt, which ends before."""


@dataclass(slots=True)
class Meter:
    """Runs attempts one after another, each until it has trained for ``window_s`` seconds."""

    client: Client
    base: BenchmarkJob
    window_s: float
    until_s: float
    """The end of all measuring, of ``monotonic``."""
    longest_s: float
    """Longest time of one attempt."""
    applied: frozenset[str] = frozenset()
    """Switches that the last attempt has applied, by its report."""

    def left_s(self) -> float:
        """Return the time that is left."""
        return self.until_s - monotonic()

    def measure(self, settings: Variations) -> ShortAttempt:
        """Run one attempt, and return its rate or the reason why it has none."""
        complain(f"{', '.join(each.title for each in settings) or 'as it is'}")
        began_s = monotonic()
        text = json.dumps(attempt_fields(self.base, settings, self.left_s() + LATER_S)).encode()
        place = placed(self.base.path, text)
        with Interrupts() as interrupts:  # one that comes now waits until the job is known
            job_id = self.client.submit(place, text, f"tune-{self.base.name}"[:60])["job"]["id"]
            try:
                with interrupts.allowed():
                    while self.left_s() > 0 and not self.client.wait_for_start(job_id, LOOK_S)[0]:
                        pass  # for resources: that is no time of the attempt
                    seen, job = self._watch(job_id, min(monotonic() + self.longest_s, self.until_s))
            except KeyboardInterrupt as stopped:
                self.client.act(job_id, "cancel", {})
                with interrupts.allowed():
                    await_end(self.client, job_id, monotonic() + LATER_S)
                raise KeyboardInterrupt(f"interrupted; {job_id} is cancelled") from stopped
        return self._examine(job, seen, monotonic() - began_s)

    def _watch(self, job_id: str, until_s: float) -> tuple[list[MetricsLine], JobDetail]:
        """Look at an attempt until it has shown enough, and end it; return the steps that it told."""
        seen: list[MetricsLine] = []
        trains_s: float | None = None
        while True:
            done, job = self.client.wait(job_id, LOOK_S)
            told = job["progress"] or {}
            step = told.get("step")
            if step and (not seen or step > seen[-1].step):
                trains_s = monotonic() if trains_s is None else trains_s
                seen.append(MetricsLine(told["time"], step, told.get("phase") != "eval"))
            if done:
                return seen, job
            is_enough = trains_s is not None and monotonic() - trains_s >= self.window_s
            if monotonic() >= until_s or (is_enough and steps_per_s(seen)):
                break
        self.client.act(job_id, "cancel", {})
        return seen, await_end(self.client, job_id, None)[1]

    def _examine(self, job: JobDetail, seen: list[MetricsLine], took_s: float) -> ShortAttempt:
        """Return the findings of an attempt that has ended."""
        raw = self._read(job, "metrics.jsonl")
        self.applied = applied_switches(self._read(job, "effective.json"))
        if job["outcome"] not in {"succeeded", "cancelled"}:
            why = f"{job['outcome'] or job['state']}: {job['why']}; runner logs {job['id']}"
            return ShortAttempt(None, took_s, why)
        rate = steps_per_s(parse_metrics(raw)) or steps_per_s(seen)
        if rate is None:
            steps, took = max((each.step for each in seen), default=0), f"{took_s:.0f} s"
            why = f"{steps} steps in {took} are too few for a rate; it reports none, or --for is too short"
            return ShortAttempt(None, took_s, why if job["attempt"] else f"waited for {took} to start")
        if self.base.kind == "program":  # the batch of a built-in workload is the same in all attempts
            rate *= items_per_step(self._read(job, "status.json"))
        return ShortAttempt(rate, took_s, "", first_losses(raw))

    def _read(self, job: JobDetail, name: str) -> bytes:
        """Return a report of an attempt; empty if it has not written it."""
        query = query_string({"path": f"/job/attempts/1/{name}"})
        target = f"/v1/jobs/{quote_path(job['id'])}/files{query}"
        with (
            suppress(RunnerError, tarfile.TarError, OSError),
            self.client.stream(target) as body,
            tarfile.open(fileobj=body, mode="r|") as archive,  # type: ignore[call-overload]  # only read
        ):
            member = archive.next()
            file = archive.extractfile(member) if member else None
            return bytes(file.read(MAX_REPORT_BYTES)) if file else b""
        return b""


def attempt_fields(base: BenchmarkJob, settings: Variations, limit_s: float) -> dict[str, Any]:
    """Return the job file of one attempt: it is tried once, saves nothing on its way and waits for no job.

    It ends after ``limit_s`` seconds, also if nobody cancels it.
    """
    fields = job_fields(base, settings)
    queue = {
        key: value for key, value in fields.get("queue", {}).items() if key not in {"after", "not_before"}
    }
    return {
        **{key: value for key, value in fields.items() if key != "track"},
        "queue": queue,
        "resources": {
            **(resources := fields.get("resources", {})),
            "time_limit": _shorter(resources, limit_s),
        },
        "retry": {**fields.get("retry", {}), "max_attempts": 1},
        "checkpoint": {**fields.get("checkpoint", {}), **ONCE},
        "stop_grace": "1s",  # nothing has to be saved
    }


def _shorter(resources: Mapping[str, Any], limit_s: float) -> str:
    """Return the shorter one of the job's time limit and another."""
    own: str | None = resources.get("time_limit")
    return own if own and parse_duration(own).total_seconds() < limit_s else f"{limit_s:.0f}s"


def steps_per_s(reports: Sequence[MetricsLine]) -> float | None:
    """Return the rate of the steady part of an attempt, without its evaluations; None with too few steps.

    The steps between two reports are counted by their numbers: it does not matter how often it reports.
    """
    first, last = (reports[0].step, reports[-1].step) if reports else (0, 0)
    steady = [each for each in reports if each.step >= first + UNSTEADY * (last - first)]
    trained = [(old, new) for old, new in pairwise(steady) if old.trained and new.trained]
    steps = sum(new.step - old.step for old, new in trained)
    seconds = sum(new.time - old.time for old, new in trained)
    return steps / seconds if last - first >= LEAST and steps > 0 and seconds > 0 else None


def items_per_step(raw: bytes) -> float:
    """Return the items of one step, by the last heartbeat; 1 if it tells none."""
    status = _mapping(raw)
    items, step = status.get("items"), status.get("step")
    return items / step if isinstance(items, int) and isinstance(step, int) and items and step else 1.0


def first_losses(raw: bytes) -> dict[int, float]:
    """Return the first losses by step."""
    lines = [_mapping(line) for line in raw.splitlines()[:FIRST_LINES]]
    return {
        line["step"]: float(line["loss"])
        for line in lines
        if isinstance(line.get("step"), int) and isinstance(line.get("loss"), int | float)
    }


def applied_switches(raw: bytes) -> frozenset[str]:
    """Return the switches that a program has applied, by its report."""
    switches = _mapping(raw).get("switches")
    known = switches.items() if isinstance(switches, dict) else ()
    return frozenset(
        name for name, said in known if isinstance(said, dict) and said.get("applied") is not None
    )


def _mapping(raw: bytes) -> dict[str, Any]:
    """Return a JSON object; empty if the text is none."""
    with suppress(ValueError, RecursionError):
        found = json.loads(raw)
        return found if isinstance(found, dict) else {}
    return {}
