"""Trainings of mixed length that share a machine: ``attained`` beside ``fair``, and beside Slurm.

The same trainings arrive at the same times in each queue: long ones first, one for each device, and shorter
ones while those work.  A processor stands in for a device, so that every machine can measure this; more
devices than processors slow all queues down alike.  The slowdown of a training is the time from its
submission to its end, by the time that its kind takes alone on the idle machine.

In the order ``fair`` nobody is preempted, so its weights are the untouched ones, and those of all
others must be equal to them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from bench.rivals.slurm_sharing import WAYS, Node, Way, slurm_day, write_script
from bench.support import chart
from bench.support.arrivals import STEPS, End, Training, day, play, slowdowns
from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, Series
from bench.support.scratch import Scratch
from runner.adapters.process.reach import closed_directory
from runner.core.ports.users import Owner
from runner.files.settings.model import RunAs

BENCH: Final = "sharing"
ORDERS: Final = ("fair", "attained")
DEVICES, CONTAINED_DEVICES = 4, 2
AIM_FAIR: Final = 3.0
"""The mean slowdown in the order ``fair`` is at least so many times that with ``attained``."""
AIM_SLURM: Final = 2.0

QUEUE: Final = {
    "cpu_weight": 1.0,
    "preemption": {"grace": "1s"},
    "switching": {"budget": 0.5, "levels": ["6s", "1h"]},
}
"""A day in minutes: a training leaves the lowest level after 6 s instead of an hour, and switching may take
half of the time, because a start takes longer than most of these trainings."""


@dataclass(slots=True)
class RunnerDay:
    """A day in one order of the runner."""

    daemon: BenchDaemon
    jobs: dict[str, str] = field(default_factory=dict)  # the id by name

    def submit(self, training: Training) -> None:
        self.jobs[training.name] = self.daemon.submit(
            self.daemon.write(training.job_file(), f"{training.name}.yaml")
        )

    def ends(self) -> dict[str, End]:
        """Wait until all have ended, and return what became of them.

        Raises:
            CannotMeasure: one did not succeed.
        """
        return {name: self._end(job) for name, job in self.jobs.items()}

    def _end(self, job: str) -> End:
        found: Mapping[str, Any] = self.daemon.await_state(job, "finished")
        if found["outcome"] != "succeeded":
            raise CannotMeasure(f"job {job}: {found['why']}")
        attempts = found["attempts"]
        return End(
            _moment(found["submitted_at"]),
            _moment(attempts[-1]["ended_at"]),
            str(found["result"]["weights_sha256"]),
            len(attempts),
        )


@dataclass(frozen=True, slots=True)
class Days:
    """The same day in two queues."""

    trainings: Sequence[Training]
    alone_s: Mapping[str, float]
    ours: Mapping[str, End]
    theirs: Mapping[str, End]

    def line(self, label: str, beside: str, aim: float) -> Result:
        """Return the slowdowns of both, with what else is to be known of them."""
        one, other = (slowdowns(self.trainings, each, self.alone_s) for each in (self.ours, self.theirs))
        took_s = [_took_s(each) for each in (self.ours, self.theirs)]
        again = [sum(end.starts - 1 for end in each.values()) for each in (self.ours, self.theirs)]
        note = (
            f"mean slowdown {fmean(one):.2f} and {fmean(other):.2f}; the day took {took_s[0]:.0f} and"
            f" {took_s[1]:.0f} s; {again[0]} and {again[1]} restarts; {self.differ()} weights differ"
        )
        return Result(
            BENCH,
            Series(f"slowdown of {label}", "x", one),
            Series(beside, "x", other),
            Aim(1 / aim, "ratio"),
            note,
            of_means=True,
        )

    def weights_line(self, label: str) -> Result:
        """Return how many weights are not those of the other day, whose trainings nobody disturbed."""
        disturbed = [sum(end.starts > 1 for end in each.values()) for each in (self.ours, self.theirs)]
        note = f"{disturbed[0]} trainings were preempted; of those beside, {disturbed[1]}"
        series = Series(f"weights that are not the untouched ones', {label}", "jobs", (float(self.differ()),))
        return Result(BENCH, series, None, Aim(0, "p50"), note)

    def differ(self) -> int:
        return sum(self.ours[each.name].weights != self.theirs[each.name].weights for each in self.trainings)


def _took_s(ends: Mapping[str, End]) -> float:
    return max(each.ended_s for each in ends.values()) - min(each.submitted_s for each in ends.values())


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the lines of plain processes, of Slurm, and of containers."""
    share = scratch.effort.sharing_share
    trainings = day(scratch.effort.sharing, DEVICES, share)
    alone_s = _alone(scratch, trainings)
    label = f"{len(trainings)} trainings on {DEVICES}"
    try:
        _check_python()
        fair, attained = (_played(scratch, "process", order, trainings, DEVICES) for order in ORDERS)
    except CannotMeasure as problem:
        yield NotMeasured(BENCH, label, str(problem))
    else:
        days = Days(trainings, alone_s, attained, fair)
        yield days.line(label, "fair", AIM_FAIR)
        yield days.weights_line(label)
        yield from _beside_slurm(scratch, label, days)
    yield from _contained(scratch, day(scratch.effort.sharing_contained, CONTAINED_DEVICES, share), alone_s)


def _check_python() -> None:
    """Raise CannotMeasure if the user of the jobs may not enter the directory of Python: they would wait."""
    user = RunAs()
    closed = closed_directory(Path(sys.executable), Owner(user.uid, user.gid, "jobs"))
    if os.geteuid() == 0 and closed is not None:
        raise CannotMeasure(f"uid {user.uid}, as which jobs of root run, may not enter {closed}")


def _beside_slurm(scratch: Scratch, label: str, days: Days) -> Iterator[Line]:
    for way in WAYS:
        beside = f"Slurm, {way.name}"
        try:
            theirs = _on_slurm(scratch, way, days.trainings)
        except CannotMeasure as problem:
            yield NotMeasured(BENCH, beside, str(problem))
            continue
        yield replace(days, theirs=theirs).line(label, beside, AIM_SLURM)


def _contained(
    scratch: Scratch, trainings: Sequence[Training], alone_s: Mapping[str, float]
) -> Iterator[Line]:
    label = f"{len(trainings)} in containers on {CONTAINED_DEVICES}"
    try:
        fair, attained = (_played(scratch, "docker", order, trainings, CONTAINED_DEVICES) for order in ORDERS)
    except CannotMeasure as problem:
        yield NotMeasured(BENCH, label, str(problem))
        return
    days = Days(trainings, alone_s, attained, fair)
    yield days.line(label, "fair", AIM_FAIR)
    yield days.weights_line(label)


def draw(lines: Sequence[Line], machine: str, path: Path) -> str:
    """Draw the mean slowdowns of each day, and return a message about the outcome."""
    days: dict[str, dict[str, Sequence[float]]] = {}
    for line in lines:
        if isinstance(line, Result) and line.theirs is not None:
            queues = days.setdefault(line.ours.label, {"attained": line.ours.values})
            queues[line.theirs.label] = line.theirs.values
    return chart.save(chart.means(days, "mean slowdown", machine), path, (9, 4.5))


# --- the runner


def _played(
    scratch: Scratch, executor: str, order: str, trainings: Sequence[Training], devices: int
) -> dict[str, End]:
    with _daemon(scratch, executor, order, devices) as daemon:
        if executor == "docker":  # its image is built before the day begins
            first = daemon.submit(daemon.write(trainings[0].job_file(), "image.yaml"))
            daemon.await_state(first, "running")
            daemon.end(first)
        played = RunnerDay(daemon)
        play(trainings, played.submit)
        return played.ends()


@contextmanager
def _daemon(scratch: Scratch, executor: str, order: str, devices: int) -> Iterator[BenchDaemon]:
    settings = {**QUEUE, "order": order, "timezone": "UTC"}
    more = f"queue: {json.dumps(settings)}\nobserve_every_s: 0.5\n"
    with running_daemon(scratch.directory(order), executor, more, cpus=devices) as daemon:
        yield daemon


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# --- what it is beside


def _specs(daemon: BenchDaemon, trainings: Sequence[Training]) -> dict[str, Mapping[str, Any]]:
    """Return for each training what the runner would give to its program."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in trainings:
        file = daemon.write(each.job_file(), f"{each.name}.yaml")
        found[each.name] = daemon.client.submit(str(file), file.read_bytes(), None, dry_run=True)["spec"]
    return found


def _alone(scratch: Scratch, trainings: Sequence[Training]) -> dict[str, float]:
    """Return the seconds that each kind takes alone, as a plain process on the idle machine."""
    one_each = {each.kind: each for each in trainings}
    if missing := set(STEPS) - set(one_each):  # a short day has not every kind
        one_each |= dict.fromkeys(missing, trainings[0])
    with _daemon(scratch, "process", "fair", DEVICES) as daemon:
        specs = _specs(daemon, list(one_each.values()))
    took: dict[str, float] = {}
    for kind, training in sorted(one_each.items()):
        script = write_script(scratch.directory("alone"), specs[training.name])
        began = time.perf_counter()
        with (script.parent / "out.txt").open("wb") as out:
            done = subprocess.run(["sh", str(script)], check=False, stdout=out, stderr=out)
        took[kind] = time.perf_counter() - began
        if done.returncode:
            raise CannotMeasure(f"{training.name} alone ended with exit code {done.returncode}")
        print(f"{kind} alone: {took[kind]:.1f} s", file=sys.stderr, flush=True)
    return took


def _on_slurm(scratch: Scratch, way: Way, trainings: Sequence[Training]) -> dict[str, End]:
    with _daemon(scratch, "process", "fair", DEVICES) as daemon:
        specs = _specs(daemon, trainings)
    node = Node(scratch.directory("slurm"), DEVICES, scratch.effort.may_install)
    with slurm_day(way, node, lambda each: specs[each.name]) as played:
        play(trainings, played.submit)
        return played.ends(trainings)
