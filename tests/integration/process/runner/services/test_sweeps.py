"""A sweep on a real daemon: kills at its decisions change neither the winner nor a bit of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_job_runner import attach
from tests.fakes.daemon.service import Service, service, until

PROGRAM = """
import json, os, random
from attach import attach
state = {"w": 1.0}
def save(d): (d / "s.json").write_text(json.dumps(state))
def load(d): state.update(json.loads((d / "s.json").read_text()))
with attach(save, load) as job:
    for step in job.steps(40):
        if os.environ["LR"] == "0.3" and step == 25: raise SystemExit(93)
        state["w"] -= float(os.environ["LR"]) * state["w"] + random.random() * 1e-3
        is_lost = os.environ.get("DIVERGES") == os.environ["LR"] and step > 5
        job.report(loss=float("nan") if is_lost else abs(state["w"]))
    print("weights", repr(state["w"]))
"""
RATES = [0.3, 0.2, 0.1, 0.05, 0.02, 0.01]


@pytest.fixture(name="daemon")
def _daemon() -> Iterator[Service]:
    with service(executor="process", cpus=3) as made:
        made.env["PATH"] = "/usr/bin:/bin"
        yield made.start()


def submit(daemon: Service, name: str, diverges: str = "", metric: str = "loss") -> list[str]:
    code = daemon.root / "code"
    if not code.exists():
        code.mkdir(mode=0o755)
        shutil.copy(Path(attach.__file__), code / "attach.py")
        (code / "train.py").write_text(PROGRAM)
    file = daemon.file(
        name,
        workload={"kind": "program", "command": ["python3", "train.py"], "code": str(code)},
        environment={"DIVERGES": diverges},
        resources={"cpus": 1, "memory": "64MiB"},
        sweep={
            "parameters": {"environment.LR": RATES},
            "metric": metric,
            "stop": {"rungs": [10, 20], "eta": 2},
        },
    )
    return [str(job["id"]) for job in daemon.answer("submit", str(file), "--json")["jobs"]]


def shown(daemon: Service, name: str) -> dict[str, Any]:
    found: dict[str, Any] = daemon.client.get(f"/v1/sweeps/{name}")
    return found


def over(daemon: Service, name: str) -> bool:
    return all(
        each["state"] in {"succeeded", "failed", "cancelled"} for each in shown(daemon, name)["candidates"]
    )


def told(daemon: Service, name: str, jobs: list[str]) -> list[tuple[Any, ...]]:
    """Return what must be the same in every run: decisions, values and the bits of the winner."""
    found = shown(daemon, name)
    first = int(jobs[0])
    rows: list[tuple[Any, ...]] = [
        (each["parameters"], each["state"], each["values"], each["final"], each["decisions"])
        for each in found["candidates"]
    ]
    return [(int(found["best"]) - first, daemon.job(found["best"])["attempt"]), *rows]


def test_a_sweep_whose_daemon_is_killed_at_each_decision_has_the_same_winner_with_the_same_bits(
    daemon: Service,
) -> None:
    quiet = submit(daemon, "quiet")
    until(lambda: over(daemon, "quiet"), "the sweep is over", more=lambda: str(shown(daemon, "quiet")))
    undisturbed = told(daemon, "quiet", quiet)
    assert undisturbed[0][0] == 1  # 0.3 is better at both rungs, and fails behind them
    assert [row[1] for row in undisturbed[1:]] == ["failed", "succeeded", *["cancelled"] * 4]
    assert "step 20: loss" in undisturbed[2][4][1]

    killed = submit(daemon, "killed")
    seen: set[tuple[str, str]] = set()

    def kill_at_decisions() -> bool:
        events = {
            (job, event["text"])
            for job in killed
            for event in daemon.events(job)
            if event["kind"] == "sweep_decided"
        }
        if events - seen:
            daemon.kill()
            daemon.start()
            seen.update(events)
        return over(daemon, "killed")

    until(kill_at_decisions, "the sweep is over", more=lambda: str(shown(daemon, "killed")))
    assert told(daemon, "killed", killed) == undisturbed
    best = killed[1]
    logs = [daemon.log(job, daemon.job(job)["attempt"]).splitlines()[-1] for job in (quiet[1], best)]
    assert logs[0].startswith("weights ")
    assert logs[0] == logs[1]

    heading, first, *_ = daemon.runner("sweep", "results", "--csv", "killed").splitlines()
    assert heading == "job,name,state,environment.LR,step_10,step_20,final,device_h"
    assert first.startswith(f"{best},killed-2,succeeded,0.2,")
    winner = daemon.root / "best.yaml"
    winner.write_text(daemon.runner("sweep", "winner", "killed"))
    winner.chmod(0o644)
    assert daemon.ends(daemon.submit(winner))["outcome"] == "succeeded"


def test_people_stop_and_resume_a_sweep_and_restart_what_it_has_ended(daemon: Service) -> None:
    submit(daemon, "halted")
    daemon.runner("sweep", "stop", "halted")
    until(
        lambda: all(each["state"] in {"held", "paused"} for each in shown(daemon, "halted")["candidates"]),
        "all are held",
    )
    daemon.runner("sweep", "resume", "halted")
    until(lambda: over(daemon, "halted"), "the sweep is over", more=lambda: str(shown(daemon, "halted")))
    best = shown(daemon, "halted")["best"]
    assert best is not None
    ended = next(each for each in shown(daemon, "halted")["candidates"] if each["state"] == "cancelled")
    daemon.runner("restart", ended["job"])  # it pauses at each rung, and is let go on
    until(lambda: daemon.job(ended["job"])["outcome"] == "succeeded", "it goes on", more=daemon.log_tail)


def test_a_candidate_that_diverges_and_a_metric_that_nobody_reports_are_told(daemon: Service) -> None:
    submit(daemon, "lost", diverges="0.2")
    submit(daemon, "unknown", metric="los")
    for name in ("lost", "unknown"):
        until(lambda name=name: over(daemon, name), "the sweep is over", more=daemon.log_tail)  # type: ignore[misc]
    lost, unknown = (shown(daemon, name)["candidates"] for name in ("lost", "unknown"))
    assert lost[1]["values"] == [None]  # it had 0.33 at step 5, by which it would be the second
    assert "loss (no finite value) is 6 of 6; stays paused" in lost[1]["decisions"][0]
    [[end]] = {tuple(each["decisions"]) for each in unknown}
    assert end.startswith("the sweep is over: step 10: no candidate has a finite los so far; they report ")
    assert '"loss"' in end


PRINTS = """
import os, time
rate = float(os.environ["LR"])
for step in range(1, 31):
    is_lost = rate == 0.001 and step > 5
    print(f"step {step}/30 loss {'nan' if is_lost else rate * (100 - step)}", flush=True)
    time.sleep(0.2)
"""


def test_the_values_of_programs_that_print_them_are_those_of_their_lines(daemon: Service) -> None:
    """The log is looked at several times meanwhile."""
    code = daemon.root / "prints"
    code.mkdir(mode=0o755)
    (code / "train.py").write_text(PRINTS)
    file = daemon.file(
        "prints",
        workload={"kind": "program", "command": ["python3", "train.py"], "code": str(code)},
        environment={},
        resources={"cpus": 1, "memory": "64MiB"},
        sweep={
            "parameters": {"environment.LR": [1.0, 0.001, 2.0]},
            "metric": "loss",
            "stop": {"rungs": [10, 20], "eta": 2},
        },
    )
    jobs = [str(job["id"]) for job in daemon.answer("submit", str(file), "--json")["jobs"]]
    until(lambda: over(daemon, "prints"), "the sweep is over", more=daemon.log_tail)
    found = shown(daemon, "prints")
    assert [(each["values"], each["final"]) for each in found["candidates"]] == [
        ([90.0, 80.0], 70.0),
        ([None, None], None),
        ([180.0, 160.0], 140.0),
    ]
    assert found["best"] == jobs[0]
    listed = {line.split("\t")[0]: line.split("\t")[6] for line in daemon.runner("list").splitlines()}
    assert [listed[job] for job in jobs] == ["30/30"] * 3
