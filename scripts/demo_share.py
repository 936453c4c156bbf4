"""One long training and six short ones on a machine with room for one: the same day in two orders.

The order ``attained`` lets the long training save and be preempted; each short one starts within seconds.
With ``fifo`` they wait until the long training ends.  Its weights must be equal in both, and
equal to those of a run that nobody disturbed.  The machine is made small by the setting ``cpus: 1``: a
processor stands in for the device, because not every machine has one.  Both days are played at once, each by
a daemon of its own, so that a machine with two processors needs the time of one day for both.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from scripts.demo_daemon import Daemon, place

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


def submit(daemon: Daemon, name: str, steps: int) -> None:
    job = {
        "name": name,
        "workload": {
            "kind": "causal_lm", "data": "stdlib", "context": 64, "layers": 2, "width": 64, "heads": 2,
            "batch_size": 8, "steps": steps, "eval_every": None, "eval_batches": 1, "log_every": 5,
        },
        "resources": {"cpus": 1, "memory": "2GiB"},
        "checkpoint": {"every": "30s"},
    }  # fmt: skip
    daemon.runner("submit", str(daemon.write(f"{name}.yaml", job)), show=False)


def step_s(daemon: Daemon) -> float:
    """Return the time of a step here; the image is made meanwhile."""
    submit(daemon, "speed", MOST_STEPS)
    reported = daemon.at_step("speed", SPEED_STEPS)
    daemon.runner("cancel", "speed", show=False)
    return float(reported["step_s"])


def day(daemon: Daemon, order: str, long_steps: int) -> Day:
    """Play the day in one order."""
    submit(daemon, "long", long_steps)
    names = [f"short{number}" for number in range(1, SHORT_JOBS + 1)]
    for number, name in enumerate(names):
        if number % 2 == 0:
            daemon.at_step("long", long_steps * (number + 1) // (SHORT_JOBS + 1))
        submit(daemon, name, SHORT_STEPS)
    daemon.runner("wait", "long", *names, show=False)
    told = daemon.runner("events", "long", show=False).splitlines()
    return ends(daemon, order, names, [line for line in told if "was preempted" in line])


def ends(daemon: Daemon, order: str, names: list[str], events: list[str]) -> Day:
    """Return the ends of the jobs."""
    waits_s, slowdowns = [], []
    for name in names:
        job = daemon.job(name)
        submitted, started = moment(job["submitted_at"]), moment(job["attempts"][0]["placed_at"])
        ran_s = sum(moment(each["ended_at"]) - moment(each["placed_at"]) for each in job["attempts"])
        waits_s.append(started - submitted)
        slowdowns.append((moment(job["attempts"][-1]["ended_at"]) - submitted) / ran_s)
    attempts = len(daemon.job("long")["attempts"])
    return Day(order, waits_s, slowdowns, daemon.weights("long"), attempts, events)


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
    orders = ("attained", "fifo")
    daemons = [Daemon(place("demo-share") / order, 600) for order in orders]
    with ThreadPoolExecutor() as threads, ExitStack() as stack:
        for daemon, order in zip(daemons, orders, strict=True):
            daemon.configure({"cpus": 1, "queue": {**QUEUE, "order": order}})
            daemon.runner("list", show=False)  # starts it
            stack.callback(daemon.runner, "stop", show=False)
        each_s = max(threads.map(step_s, daemons))
        steps = min(max(round(LONG_S / each_s), LEAST_STEPS), MOST_STEPS)
        print(f"a step takes {1000 * each_s:.0f} ms here: the long training takes {steps}", flush=True)
        attained, fifo = threads.map(day, daemons, orders, (steps, steps))
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
