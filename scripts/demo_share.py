"""One long training and six short ones on a machine with room for one: the same day in two orders.

The order ``attained`` lets the long training save and be preempted; each short one starts within seconds.
With ``fifo`` they wait until the long training ends.  Its weights must be equal in both, and
equal to those of a run that nobody disturbed.  The machine is made small by the setting ``cpus: 1``: a
processor stands in for the device, because not every machine has one.  Both days are played at once, each by
a daemon of its own, so that a machine with two processors needs the time of one day for both.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from runner.client.autostart import Endpoint
from runner.client.client import Client

ROOT: Final = Path(__file__).parent.parent
RUNNER: Final = str(Path(sys.executable).with_name("runner"))
STATE: Final = Path(os.environ.get("RUNNER_STATE_DIR") or ROOT / ".make" / "demo-share")
PATIENCE_S: Final = 600

LONG_S: Final = 40.0
"""For how long the long training works: its number of steps follows from the speed of this machine."""
SPEED_STEPS, SHORT_STEPS, LEAST_STEPS, MOST_STEPS = 150, 40, 600, 10_000
SHORT_JOBS: Final = 6
"""Two of them come at a time, three times while the long one works."""

QUEUE: Final = {
    "cpu_weight": 1.0,
    "preemption": {"grace": "1s"},
    "switching": {"budget": 1.0, "levels": ["4s", "1h"]},
    "timezone": "UTC",
}
"""A day in a minute: a job leaves the lowest level after 4 s, not after an hour, and switching has no budget,
because at this scale it is most of the work."""


@dataclass
class Day:
    """Outcome of the jobs in one order."""

    order: str
    waits_s: list[float]
    slowdowns: list[float]
    weights: str
    attempts: int
    events: list[str]


class Daemon:
    """A daemon of our own, in one order."""

    def __init__(self, order: str) -> None:
        self.order, self.directory = order, STATE / order
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {"cpus": 1, "queue": {**QUEUE, "order": order}}
        (self.directory / "settings.yaml").write_text(json.dumps(settings))
        self.environment = {
            **os.environ,
            "RUNNER_STATE_DIR": str(self.directory),
            "RUNNER_SETTINGS": str(self.directory / "settings.yaml"),
        }

    def runner(self, *arguments: str) -> str:
        """Run a command as a user would, and return its output."""
        command = [RUNNER, *arguments]
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment
        )
        if done.returncode:
            sys.exit(f"demo: runner {' '.join(arguments)} ended with exit code {done.returncode}")
        return done.stdout

    def submit(self, name: str, steps: int) -> None:
        job = {
            "name": name,
            "workload": {
                "kind": "causal_lm", "data": "stdlib", "context": 64, "layers": 2, "width": 64, "heads": 2,
                "batch_size": 8, "steps": steps, "eval_every": None, "eval_batches": 1, "log_every": 5,
            },
            "resources": {"cpus": 1, "memory": "2GiB"},
            "checkpoint": {"every": "30s"},
        }  # fmt: skip
        path = self.directory / f"{name}.yaml"
        path.write_text(json.dumps(job))
        self.runner("submit", str(path))

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.runner("show", name, "--json"))
        return found

    def until_step(self, name: str, step: int) -> dict[str, Any]:
        """Wait for a step and return what was reported then.

        The daemon is asked directly, because so many commands would be a load.
        """
        client = Client(Endpoint(str(self.directory / "runner.sock"), None))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = client.job(name)
            reported = found.get("progress") or {}
            if reported.get("step", 0) >= step:
                return dict(reported)
            if found["state"] in {"finished", "held"}:
                sys.exit(f"demo: job {name} ended too early: {found['why']}")
            time.sleep(0.2)
        sys.exit(f"demo: job {name} did no step {step} in {PATIENCE_S} s; runner logs {name}")


def weights(found: dict[str, Any]) -> str:
    return str(found["result"]["weights_sha256"])


def step_s(daemon: Daemon) -> float:
    """Return the time of a step here; the image is made meanwhile."""
    daemon.submit("speed", MOST_STEPS)
    reported = daemon.until_step("speed", SPEED_STEPS)
    daemon.runner("cancel", "speed")
    return float(reported["step_s"])


def day(daemon: Daemon, long_steps: int) -> Day:
    """Play the day in one order."""
    daemon.submit("long", long_steps)
    names = [f"short{number}" for number in range(1, SHORT_JOBS + 1)]
    for number, name in enumerate(names):
        if number % 2 == 0:
            daemon.until_step("long", long_steps * (number + 1) // (SHORT_JOBS + 1))
        daemon.submit(name, SHORT_STEPS)
    daemon.runner("wait", "long", *names)
    events = [line for line in daemon.runner("events", "long").splitlines() if "was preempted" in line]
    found = {name: daemon.job(name) for name in ("long", *names)}
    return tell(daemon.order, found, names, events)


def tell(order: str, found: dict[str, Any], names: list[str], events: list[str]) -> Day:
    """Return the ends of the jobs."""
    waits_s, slowdowns = [], []
    for name in names:
        job = found[name]
        submitted, started = moment(job["submitted_at"]), moment(job["attempts"][0]["placed_at"])
        ran_s = sum(moment(each["ended_at"]) - moment(each["placed_at"]) for each in job["attempts"])
        waits_s.append(started - submitted)
        slowdowns.append((moment(job["attempts"][-1]["ended_at"]) - submitted) / ran_s)
    return Day(order, waits_s, slowdowns, weights(found["long"]), len(found["long"]["attempts"]), events)


def show(result: Day) -> None:
    print(f"order {result.order}:")
    print(f"  wait of the short jobs: {', '.join(f'{each:.1f} s' for each in result.waits_s)}")
    print(f"  the long training took {result.attempts} attempts; weights {result.weights}", flush=True)
    for line in result.events:
        print(f"  {line}")


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main() -> int:
    began = time.monotonic()
    print(f"one long training, and then {SHORT_JOBS} short ones, in two orders at once", flush=True)
    daemons = [Daemon(order) for order in ("attained", "fifo")]
    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        for daemon in daemons:
            daemon.runner("list")  # starts it
            stack.callback(daemon.runner, "stop")
        each_s = max(threads.map(step_s, daemons))
        steps = min(max(round(LONG_S / each_s), LEAST_STEPS), MOST_STEPS)
        print(f"a step takes {1000 * each_s:.0f} ms here: the long training takes {steps}", flush=True)
        attained, fifo = threads.map(day, daemons, (steps, steps))
    for each in (attained, fifo):
        show(each)
    ratio = sum(fifo.waits_s) / max(sum(attained.waits_s), 0.001)
    print(
        f"\nmean wait of the short jobs: {sum(attained.waits_s) / SHORT_JOBS:.1f} s with attained, "
        f"{sum(fifo.waits_s) / SHORT_JOBS:.1f} s with fifo ({ratio:.1f} times)"
    )
    equal = attained.weights == fifo.weights
    print(f"weights of the long training: {'equal, bit for bit' if equal else 'DIFFERENT'}; "
          f"it was preempted {attained.attempts - 1} times, and was not disturbed with fifo")  # fmt: skip
    print(f"all in {time.monotonic() - began:.0f} s")
    return 0 if equal and attained.attempts > 1 and fifo.attempts == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
