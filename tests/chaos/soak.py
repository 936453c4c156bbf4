"""Everything that draws at random, again and again with new seeds, for as long as it is asked to.

    python -m tests.chaos.soak --minutes 60 [--seed N]

``make test`` has a short form of each.  The first one that fails ends the soak; its seed is told.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PROPERTIES: Final = (
    "tests/unit/runner/control/test_allocated_once.py",
    "tests/unit/runner/control/test_loop.py",
    "tests/unit/runner/control/test_scheduler.py",
    "tests/unit/runner/core/job/test_lifecycle.py",
    "tests/unit/runner/core/policy/test_properties.py",
    "tests/unit/runner/core/scheduler/test_attained.py",
    "tests/unit/runner/core/scheduler/test_attained_properties.py",
    "tests/unit/runner/core/scheduler/test_reservations.py",
)
BITS: Final = (
    "tests/chaos/test_bitwise_processes.py",
    "tests/chaos/test_bitwise_stopped_early.py",
    "tests/chaos/test_bitwise_containers.py",
)
RANKS: Final = ("tests/chaos/test_distributed_killed.py",)
SLURM: Final = ("tests.chaos.slurm_campaign", "trials")
DAYS: Final = "tests/integration/test_scripted_days.py"


@dataclass(frozen=True)
class Form:
    """The long form of something, in pieces of some minutes."""

    name: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, seed: int, limit_s: float) -> int | None:
        """Run it with a seed, and return its exit status; None if the time was over before."""
        argv = [sys.executable, "-m", *(each.format(seed=seed) for each in self.arguments)]
        environ = {**os.environ, **self.environ, "TEST_SEED": str(seed)}
        with subprocess.Popen(argv, cwd=REPOSITORY, env=environ) as program:
            try:
                return program.wait(limit_s)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGINT)  # it cleans up, as after Ctrl-C
                return None


def campaign(executor: str) -> tuple[str, ...]:
    return ("tests.chaos.campaign", "--kills", "25", "--seed", "{seed}", "--executor", executor)


FORMS: Final[tuple[Form, ...]] = (
    Form("kills of a daemon beside processes", campaign("process")),
    Form("kills of a daemon beside containers", campaign("docker")),
    Form("kills of trainings", ("pytest", "-q", *BITS), {"JOBS_KILLS": "20", "JOBS_CONTAINER_KILLS": "6"}),
    Form("kills of one process of several", ("pytest", "-q", *RANKS), {"JOBS_TRIALS": "10"}),
    Form("trials of several nodes", (*SLURM, "--number", "3", "--seed", "{seed}")),
    Form("days of ten users", ("pytest", "-q", DAYS), {"RUNNER_DAYS": "all"}),
    Form("all benches", ("pytest", "-q", "tests/integration/test_bench.py"), {"BENCHES": "all"}),
    Form("properties", ("pytest", "-q", "--hypothesis-seed={seed}", *PROPERTIES), {"RUNNER_EXAMPLES": "20"}),
)


def main() -> int:
    """Return 1 as soon as something has failed, and 0 when the time is over."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    asked = parser.parse_args()
    ends_s = time.monotonic() + 60 * asked.minutes
    forms = FORMS
    if not os.environ.get("SLURM_CONF"):
        forms = tuple(form for form in FORMS if form.arguments[0] != SLURM[0])
        sys.stdout.write("there is no Slurm: the trials of several nodes are left out\n")
    for number in count():
        form, seed = forms[number % len(forms)], asked.seed + number // len(forms)
        if (left_s := ends_s - time.monotonic()) <= 0:
            return 0
        sys.stdout.write(f"{form.name}: seed {seed}, {left_s / 60:.0f} min left\n")
        sys.stdout.flush()
        if form.run(seed, left_s):
            sys.stdout.write(f"{form.name}: failed with seed {seed}\n")
            return 1
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
