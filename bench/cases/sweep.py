"""A sweep that stops bad candidates, beside its whole grid, and beside Optuna with its pruner.

The 27 candidates of ``examples/sweep.yaml`` train in containers with half a processor each, four at a time.
The grid trains all of them to the end.  The sweep pauses them at rungs and lets the best third go on.
Optuna's ``SuccessiveHalvingPruner`` has the same rungs, and its trials are ``docker run`` of the same
program, ended once they are pruned.  Counted are steps, and the processor seconds that the candidates held.
"""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from bench.rivals import container
from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, Series
from bench.support.rundir import prepare_run_directory
from bench.support.scratch import Scratch

BENCH: Final = "sweep"
AIM_STEPS: Final = 0.35
AIM_SECONDS: Final = 0.45
AT_ONCE: Final = 4
POLL_S: Final = 0.1
PATIENCE_S: Final = 3600.0
ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})

JOB: Final[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "examples" / "sweep.yaml").read_text()
)
SWEEP: Final[dict[str, Any]] = JOB.pop("sweep")
WORKLOAD: Final[dict[str, Any]] = JOB["workload"]
CPUS: Final[float] = JOB["resources"]["cpus"]
RUNGS: Final[list[int]] = SWEEP["stop"]["rungs"]
METRIC: Final[str] = SWEEP["metric"]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield steps and processor seconds of the sweep and of Optuna beside the grid."""
    with running_daemon(scratch.directory("daemon"), cpus=round(CPUS * AT_ONCE)) as daemon:
        count = scratch.effort.candidates
        grid = _run(daemon, {**SWEEP, "candidates": count, "stop": None})
        swept = _run(daemon, {**SWEEP, "candidates": count})
        yield from _lines("sweep", _cost(swept), _cost(grid), aimed=True)
        best = next(n for n, each in enumerate(swept["candidates"]) if each["job"] == swept["best"])
        weights = [_weights(daemon, found["candidates"][best]["job"]) for found in (swept, grid)]
        yield Result(
            BENCH,
            Series("winners whose weights differ from those undisturbed", "jobs", (len(set(weights)) - 1.0,)),
            aim=Aim(0, "p50"),
        )
        try:
            yield from _lines("Optuna", _prune(scratch, daemon, grid["candidates"]), _cost(grid), aimed=False)
        except (CannotMeasure, ImportError) as problem:
            yield NotMeasured(BENCH, "Optuna", str(problem))


def _lines(name: str, ours: tuple[float, float], grid: tuple[float, float], *, aimed: bool) -> Iterator[Line]:
    yield Result(
        BENCH,
        Series(f"{name}: steps", "steps", (ours[0],)),
        Series("the grid", "steps", (grid[0],)),
        Aim(AIM_STEPS, "ratio") if aimed else None,
    )
    yield Result(
        BENCH,
        Series(f"{name}: processor seconds", "s", (ours[1],)),
        Series("the grid", "s", (grid[1],)),
        Aim(AIM_SECONDS, "ratio") if aimed else None,
    )


def _run(daemon: BenchDaemon, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep once all of its candidates have ended."""
    first = daemon.submit(daemon.write(json.dumps({**JOB, "sweep": section})))
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: dict[str, Any] = daemon.client.get(f"/v1/sweeps/{first}")
        if all(each["state"] in ENDED for each in found["candidates"]):
            return found
        time.sleep(1)
    raise CannotMeasure(f"a sweep is not over after {PATIENCE_S:.0f} s")


def _cost(found: Mapping[str, Any]) -> tuple[float, float]:
    """Return the steps of all candidates, and the processor seconds that they held."""
    return sum(each["step"] or 0 for each in found["candidates"]), found["device_h"] * 3600


def _weights(daemon: BenchDaemon, job: str) -> str:
    return str((daemon.client.job(job)["result"] or {}).get("weights_sha256"))


# --- Optuna


def _prune(scratch: Scratch, daemon: BenchDaemon, candidates: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the same of the same candidates, if Optuna's pruner decides."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=RUNGS[0], reduction_factor=SWEEP["stop"]["eta"]
    )
    study = optuna.create_study(direction="minimize", pruner=pruner)
    image = str(daemon.client.job(candidates[0]["job"])["image"])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        costs = list(pool.map(partial(_trial, scratch, daemon, study, image), candidates))
    return sum(steps for steps, _ in costs), sum(seconds for _, seconds in costs) * CPUS


def _trial(
    scratch: Scratch,
    daemon: BenchDaemon,
    study: Any,
    image: str,
    candidate: Mapping[str, Any],
) -> tuple[float, float]:
    """Return the steps and the seconds of one trial."""
    trial, name = study.ask(), f"bench-sweep-{candidate['job']}"
    values = candidate["parameters"]
    workload = {**WORKLOAD, **{key.partition(".")[2]: value for key, value in values.items() if "." in key}}
    text = json.dumps({**JOB, "name": name, "workload": workload, "seed": values["seed"]})
    plan = daemon.plan(daemon.write(text, f"{name}.json"), image)
    root = prepare_run_directory(scratch.directory(name), plan)
    told = root / "attempts" / "1" / "metrics.jsonl"
    seen = partial(_follow, trial, told, name)
    output, steps = root.parent / "output.txt", list[int]()
    seconds = container.time_until(plan.hardened_argv(name, root), output, lambda: seen(steps))
    return float(steps[-1]) if steps else 0.0, seconds


def _follow(trial: Any, told: Path, name: str, steps: list[int]) -> float:
    """Return the time at which a trial was pruned or ended; ``steps`` gets the steps with a value."""
    while True:
        ended = container.docker("ps", "--all", f"--filter=name=^{name}$", "--format={{.State}}") == "exited"
        for line in told.read_text().splitlines() if told.exists() else ():
            row = json.loads(line)
            if METRIC not in row or (steps and row["step"] <= steps[-1]):
                continue
            steps.append(row["step"])
            trial.report(row[METRIC], row["step"])
            if row["step"] < WORKLOAD["steps"] and trial.should_prune():
                return time.perf_counter()
        if ended:
            return time.perf_counter()
        time.sleep(POLL_S)
