"""The end of a training as it was estimated from its progress, beside its true end.

Real trainings of the examples run one after the other.  At the first answer after a part of the steps, the
end that ``runner why`` gives is noted.  The error is the distance to the true end, as a part of the whole run
time.  Only estimates from reported progress count.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.jobfile import CPUS
from bench.support.result import Aim, CannotMeasure, Line, Result, Series
from bench.support.scratch import Effort, Scratch
from bench.support.stats import median

BENCH: Final = "estimates"
AIM_PERCENT: Final = 10.0
"""The median error after a tenth of the steps."""

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
TRAININGS: Final[Mapping[str, Mapping[str, int]]] = {
    "causal_lm": {"steps": 1200},
    "causal_lm_minimal": {"steps": 1500},
    "graph_forecast_panel": {"steps": 800},
    "causal_lm_text": {"epochs": 3},
}
"""Examples that need no data, with a length for each: about a minute."""

PARTS: Final = (0.1, 0.25, 0.5)
POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Errors:
    """The estimated ends of one training: each error as a part of the run time; negative: too early."""

    by_part: Mapping[float, float]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the errors after each part of the steps.

    Raises:
        CannotMeasure: no training was long enough to be estimated.
    """
    more = "watch_every_s: 1\n"  # as often for a minute as the default is for five
    with running_daemon(scratch.directory("daemon"), more=more) as daemon:
        found = [
            follow(daemon, daemon.write(text, f"{name}.yaml"))
            for _ in range(scratch.effort.estimates)
            for name, text in job_files(scratch.effort).items()
        ]
    for part in PARTS:
        errors = [each.by_part[part] for each in found if part in each.by_part]
        if not errors:
            continue
        off = tuple(abs(error) * 100 for error in errors)
        aim = Aim(AIM_PERCENT, "p50") if part == PARTS[0] else None
        note = f"{len(errors)} trainings; as a median the end was told {median(errors):+.1%} late"
        label = f"error of the end after {part:.0%} of the steps, of the run time"
        yield Result(BENCH, Series(label, "%", off), None, aim, note)
    if not any(each.by_part for each in found):
        raise CannotMeasure("the trainings ended before their end was estimated")


def job_files(effort: Effort) -> dict[str, str]:
    """Return the job files by name."""
    made: dict[str, str] = {}
    for name, length in list(TRAININGS.items())[: 2 * effort.cases]:
        tree = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        tree["workload"] |= {unit: max(1, int(number * effort.turn_share)) for unit, number in length.items()}
        tree.setdefault("resources", {})["cpus"] = CPUS
        made[name] = yaml.safe_dump(tree)
    return made


def follow(daemon: BenchDaemon, file: Path) -> Errors:
    """Run a training, and return how far off its estimated ends were."""
    job = daemon.submit(file)
    daemon.await_state(job, "running")
    told: dict[float, float] = {}
    while (found := daemon.client.job(job))["state"] != "finished":
        progress: Mapping[str, Any] = found.get("progress") or {}
        done = (progress.get("step") or 0) / (progress.get("total_steps") or float("inf"))
        due = [part for part in PARTS if part <= done and part not in told]
        if due:
            why: Mapping[str, Any] = daemon.client.why(job)
            if why["estimated_by"] == "progress" and why["until"] is not None:
                told |= dict.fromkeys(due, _moment(why["until"]))
        time.sleep(POLL_S)
    if found["outcome"] != "succeeded":
        raise CannotMeasure(f"job {job}: {found['why']}")
    attempt: Mapping[str, Any] = found["attempts"][-1]
    began_s, ended_s = _moment(attempt["placed_at"]), _moment(attempt["ended_at"])
    return Errors({part: (end_s - ended_s) / (ended_s - began_s) for part, end_s in told.items()})


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
