"""A change in the middle of a job: the predicted and the measured time of restart, keep and resume.

The case of the source documents, on this machine: a graph forecaster that builds its graphs again for every
batch, and saves at the ends of epochs only.  A profile that keeps the graphs is offered three times: at 84 %
of the first epoch, at 84 % of the last one, and at 84 % of the first with a checkpoint in its middle.  Each
time a canary measures the change and the policy decides.  Afterwards every alternative is carried out, so
that the prediction can be compared with the measured time.

Before that, the decision of the source is replayed as it was told (``demo_restart_told``): at 84 % of the
validation bar.  ``--told`` shows that part alone.
"""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts import demo_restart_told
from scripts.demo_daemon import Daemon, place
from scripts.demo_restart_told import CANARY, finished

DAEMON: Final = Daemon(place("demo-restart"), 900)

EPOCH: Final = 100
"""Steps; what 1131 days come to in batches of 8."""

EPOCHS: Final = 3
TRIED_AT, DECIDED_AT = 0.35, 0.84
CHOICES: Final = ("keep", "resume", "restart")


def job_file(name: str, graphs: str, every_steps: int) -> Path:
    """Write the job file of one job with one graph cache, and return where it is."""
    job = {
        "name": name,
        "workload": {
            "kind": "graph_forecast",
            "data": "synthetic-stocks",
            "synthetic_assets": 64,
            "synthetic_days": 1131,
            "hidden": 64,
            "steps": EPOCH * EPOCHS,
            "batch_size": 8,
            "eval_every": None,
            "eval_batches": 1,
            "log_every": 1,
        },
        "profile": {"extends": "cpu", "name": f"graphs-{graphs}", "graph_cache": graphs, "threads": 1},
        "policy": "restart-if-epoch-only-checkpoints",
        "resources": {"cpus": 1, "memory": "2GiB"},
        "checkpoint": {"every": None, "every_steps": every_steps, "on_stop": False, "keep": 10},
    }
    return DAEMON.write(f"{name}-{graphs}.yaml", job)


@dataclass
class Decision:
    """The decision about a change, and its time."""

    title: str
    name: str
    answer: dict[str, Any]
    at: float
    real: dict[str, float] = field(default_factory=dict)

    @property
    def chosen(self) -> str:
        return str(self.answer["outcome"])

    def expected(self, choice: str) -> float | None:
        value: float | None = self.answer["econ"]["expected"][choice]
        return value


def decided(title: str, name: str, epoch: int) -> Decision:
    """Offer the change at 84 % of an epoch, do what the policy decides, and return the decision."""
    print(f"\n=== {title}", flush=True)
    change = DAEMON.state / f"{name}-memory.yaml"
    progress = DAEMON.at_step(name, EPOCH * (epoch - 1 + TRIED_AT))
    print(f"  step {progress['step']}: the canary takes {CANARY} steps beside it", flush=True)
    canary = demo_restart_told.canary(DAEMON, name, change)
    DAEMON.at_step(name, EPOCH * (epoch - 1 + DECIDED_AT))
    answer = demo_restart_told.offered(DAEMON, change, canary)
    return Decision(title, name, answer, time.time())


def submitted(name: str, every_steps: int) -> None:
    job_file(name, "memory", every_steps)
    DAEMON.runner("submit", str(job_file(name, "off", every_steps)))


def scenario() -> list[Decision]:
    """Carry out the three cases and every alternative of each."""
    submitted("first", EPOCH)
    first = decided("84 % of the first epoch, checkpoints at ends of epochs only", "first", 1)
    first.real[first.chosen] = finished(DAEMON, "first") - first.at

    submitted("last", EPOCH)
    DAEMON.at_step("last", first.answer["econ"]["work"]["done"])
    began = time.time()
    last = decided("84 % of the last epoch", "last", EPOCHS)
    last.real["keep"] = finished(DAEMON, "last") - last.at
    first.real["keep"] = finished(DAEMON, "last") - began
    print("  and what resuming would have taken: the end of the second epoch, with the change", flush=True)
    change = str(DAEMON.state / "last-memory.yaml")
    DAEMON.runner("apply", change, show=False, codes=(0, 3))  # it has ended: for its next start
    again = time.time()
    DAEMON.runner("restart", "last", "--from", str(EPOCH * (EPOCHS - 1)))
    last.real["resume"] = finished(DAEMON, "last") - again

    submitted("middle", EPOCH // 5)
    middle = decided("84 % of the first epoch, with a checkpoint at 80 %", "middle", 1)
    middle.real[middle.chosen] = finished(DAEMON, "middle") - middle.at
    for other in (last, middle):
        other.real.setdefault("restart", first.real.get("restart", 0.0))
    middle.real["keep"] = first.real["keep"]
    return [first, last, middle]


def report(cases: list[Decision]) -> bool:
    """Print predicted and measured times, and return whether the fastest alternative was always chosen."""
    print("\nfrom the decision to the last step:")
    print(f"{'case':<62}{'':<10}{'predicted':>10}{'real':>9}{'off':>8}")
    right = True
    for case in cases:
        real = {choice: seconds for choice, seconds in case.real.items() if seconds}
        fastest = min(real, key=lambda choice: real[choice])
        right = right and fastest == case.chosen
        for choice in CHOICES:
            expected, took = case.expected(choice), real.get(choice)
            if expected is None or took is None:
                continue
            marks = f"{'chosen' if choice == case.chosen else ''} {'fastest' if choice == fastest else ''}"
            off = f"{100 * (expected / took - 1):+.0f} %"
            title = case.title if choice == "keep" else ""
            print(f"{title:<62}{choice:<10}{expected:>8.1f} s{took:>7.1f} s{off:>8}  {marks.strip()}")
    return right


def main() -> int:
    began = time.monotonic()
    DAEMON.runner("list", show=False)  # starts the daemon
    try:
        was_right = demo_restart_told.replay(DAEMON)
        if "--told" in sys.argv:
            return 0 if was_right else 1
        cases = scenario()
    finally:
        DAEMON.runner("stop", show=False)
    wanted = ["restart", "keep", "resume"]
    right = report(cases)
    chosen = [case.chosen for case in cases]
    print(f"\nchosen: {', '.join(chosen)}; in {time.monotonic() - began:.0f} s")
    if chosen != wanted:
        print(f"that is not what the arithmetic of a quiet machine gives: {', '.join(wanted)}")
    return 0 if right and was_right and chosen == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
