"""Cost of looking at a machine: pages, painting, the daemon's part of it, and commands by ssh.

The daemon has eight simulated GPUs, a long history and 200 jobs that wait.  Pages are asked for when nothing
is kept from the question before.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.cases.idle_daemon import with_history
from bench.cases.long_queue import SETTINGS, Queue
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.dashboard import (
    Dashboard,
    browser,
    dashboard,
    free_port,
    pause,
    ssh_server,
    time_painting,
)
from bench.support.process import busy_percent
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, Series, in_milliseconds
from bench.support.scratch import Scratch
from runner.dashboard.daemon import FRESH_S
from tests.fakes.gpu.hosts import compile_nvml, h100s

BENCH: Final = "dashboard"
DEVICES: Final = 8
WAITING: Final = 200
OPEN: Final = 20
SERIES: Final = 8
AIM_PAGE: Final = 5.0
AIM_LIST: Final = 2.0
AIM_PERCENT: Final = 2.0
AIM_SSH: Final = 1.5
AIM_PAINTED_MS: Final = 500.0

REPORTS: Final = """\
import json, os
with open(os.environ["RUNNER_ATTEMPT_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(POINTS):
        row = {"time": 1.8e9 + step, "step": step}
        row |= {f"curve_{n}": (step * (n + 7)) % 1000 for n in range(SERIES)}
        file.write(json.dumps(row) + chr(10))
"""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the pages, the daemon's processor time, a command by ssh, and long curves."""
    with ExitStack() as stack:
        stack.enter_context(_simulated_devices(scratch))
        daemon = stack.enter_context(running_daemon(with_history(scratch), "process", SETTINGS))
        job = _with_curves(daemon, scratch.effort.points)
        queue = Queue(daemon)
        stack.callback(queue.clear)
        queue.fill(_waiting(scratch))
        shown = stack.enter_context(dashboard(daemon))
        yield _machine_page(scratch, daemon, shown)
        yield from _painted(scratch, shown, job)
        yield _open_dashboards(scratch, daemon)
        yield from _by_ssh(scratch, daemon)


@contextmanager
def _simulated_devices(scratch: Scratch) -> Iterator[None]:
    """Let daemons that are started now find GPUs."""
    place = scratch.directory("driver")
    library, said = compile_nvml(place / "library"), place / "host"
    h100s(DEVICES).write(said)
    known = {"LD_LIBRARY_PATH": str(library), "RUNNER_FAKE_NVML": str(said)}
    before = {name: os.environ.get(name) for name in known}
    os.environ.update(known)
    try:
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name)
            if text is not None:
                os.environ[name] = text


def _with_curves(daemon: BenchDaemon, points: int) -> str:
    """Return a job that has reported long curves, once the daemon has read them."""
    code = daemon.directory / "reports"
    code.mkdir()
    (code / "report.py").write_text(f"POINTS, SERIES = {points}, {SERIES}\n{REPORTS}")
    workload = f"{{kind: program, command: [/usr/bin/python3, report.py], code: '{code}'}}"
    file = daemon.write(f"name: reports\nworkload: {workload}\nresources: {{cpus: 1, memory: 512MiB}}\n")
    job = daemon.submit(file)
    daemon.await_state(job, "finished")

    def is_read() -> bool:
        curves = daemon.client.get(f"/v1/jobs/{job}/curves")["curves"]
        return len(curves) >= SERIES and curves["curve_0"][-1][1] >= 0.98 * points

    interleave.wait_for("the curves", is_read, 120, 0.5)
    return job


def _waiting(scratch: Scratch) -> int:
    return min(WAITING, scratch.effort.waiting)


def _machine_page(scratch: Scratch, daemon: BenchDaemon, shown: Dashboard) -> Line:
    contestants = {
        "page": _anew(interleave.time_call(lambda: shown.get("/"))),
        "version": interleave.time_call(daemon.client.version),
    }
    seconds = interleave.interleave(2 * scratch.effort.lists, scratch.effort.warmups, contestants)
    name = f"page of a machine, {DEVICES} devices and {_waiting(scratch)} jobs"
    ours = in_milliseconds(name, seconds["page"])
    return Result(BENCH, ours, in_milliseconds("GET /v1/version", seconds["version"]), Aim(AIM_PAGE, "ratio"))


def _painted(scratch: Scratch, shown: Dashboard, job: str) -> Iterator[Line]:
    """Yield the list and long curves, to the end of painting."""
    effort = scratch.effort
    rounds = (effort.lists, effort.warmups)
    table = scratch.directory("static") / "table.html"
    text = shown.get("/jobs")
    head, _, rest = text.partition("<main")
    table.write_text(f"{head.partition('<link')[0]}</head><body><main{rest.partition('<script')[0]}")
    name = f"list of {effort.finished_jobs:,} jobs, to the end of painting"
    try:
        with browser(shown) as page:
            contestants = {
                "list": _anew(time_painting(page, f"{shown.base}/jobs")),
                "static": time_painting(page, table.as_uri()),
            }
            seconds = interleave.interleave(*rounds, contestants)
            curves = interleave.interleave(
                *rounds, {"curves": _anew(time_painting(page, f"{shown.base}/jobs/{job}", SERIES))}
            )
    except CannotMeasure as error:
        yield NotMeasured(BENCH, name, str(error))
        return
    theirs = in_milliseconds("a static table of 200 rows", seconds["static"])
    yield Result(BENCH, in_milliseconds(name, seconds["list"]), theirs, Aim(AIM_LIST, "ratio"))
    name = f"page with {SERIES} curves of {effort.points:,} points, to the end of painting"
    yield Result(BENCH, in_milliseconds(name, curves["curves"]), None, Aim(AIM_PAINTED_MS, "p50"))


def _anew(measure: Callable[[], float]) -> Callable[[], float]:
    def after_a_moment() -> float:
        pause(FRESH_S)
        return measure()

    return after_a_moment


def _open_dashboards(scratch: Scratch, daemon: BenchDaemon) -> Line:
    """Return the daemon's processor time with open dashboards of as many users, less that without."""
    pid, seconds, users = daemon.process.pid, scratch.effort.idle_s, min(OPEN, scratch.effort.followers)
    without = busy_percent(pid, seconds)
    with ExitStack() as stack:
        for _ in range(users):
            stack.enter_context(stack.enter_context(dashboard(daemon)).listen())
        pause(min(5.0, seconds))
        busy = busy_percent(pid, seconds)
    name = f"processor time of the daemon for {users} open dashboards"
    return Result(BENCH, Series(name, "%", (max(busy - without, 0.0),)), None, Aim(AIM_PERCENT, "p50"))


def _by_ssh(scratch: Scratch, daemon: BenchDaemon) -> Iterator[Line]:
    """Yield ``runner list`` on another machine beside ``ssh localhost true`` and the command itself."""
    name, port = "runner --host ssh://localhost list", free_port()
    place = scratch.directory("ssh")
    there = place / "there"
    words = " ".join(runner_command())
    there.write_text(f'#!/bin/sh\nRUNNER_STATE_DIR={daemon.directory} exec {words} "$@"\n')
    there.chmod(0o755)
    try:
        with ssh_server(place, port) as environment:
            known = {key: text for key, text in environment.items() if not key.startswith("RUNNER_")}
            url = f"ssh://{Path('~').expanduser().owner()}@127.0.0.1:{port}?command={there}"
            contestants = {
                "far": interleave.time_command([*runner_command(), "--host", url, "list"], known),
                "ssh": interleave.time_command(["ssh", "-p", str(port), "127.0.0.1", "true"], known),
                "here": interleave.time_command([*runner_command(), "list"], daemon.environment),
            }
            seconds = interleave.interleave(scratch.effort.lists, scratch.effort.warmups, contestants)
    except CannotMeasure as error:
        yield NotMeasured(BENCH, name, str(error))
        return
    allowed = tuple(AIM_SSH * ssh + here for ssh, here in zip(seconds["ssh"], seconds["here"], strict=True))
    label = f"{AIM_SSH:g} x ssh localhost true + runner list"
    yield Result(
        BENCH, in_milliseconds(name, seconds["far"]), in_milliseconds(label, allowed), Aim(1.0, "ratio")
    )
