"""Turns each switch of a profile into a no-op, and fails if the test that is named for it stays green.

    python -m scripts.mutate_switches [SWITCH ...]

The code that acts on a switch then reads its plain value, whatever the profile says; the reports still read
what was asked for.  So a test that only looks at a report, or that a switch changes no bits, does not count
as a proof that the switch is there.  This module is also the plugin of pytest that does it, in the process of
the test: nothing in the working tree is changed.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jobs.contract import SWITCHES, Profile

ROOT: Final = Path(__file__).parent.parent
VARIABLE: Final = "MUTATED_SWITCH"

ACTING: Final = (
    "jobs.training.",
    "jobs.workloads.",
    "jobs.checkpoint.",
    "jobs.data.",
    "jobs.contract.profile",
    "runner.files.profiles.environment",
)
"""Modules that act on switches."""

REPORTING: Final = "jobs.training.switches"

PLAIN: Final[Mapping[str, Any]] = {
    "deterministic": False,
    "compile_cache": False,
    "attention": "rebuilt_mask",
    "loader_persistent": False,
    "transfer": "always",
    "conversion": "each_use",
    "shared_targets": False,
    "graph_cache": "off",
    "encode_once": False,
    "last_position_only": False,
    "dry_run": False,
    "async_save": False,
}
"""Values of a switch that is not there, where they are not the defaults of the contract."""

TESTS: Final[Mapping[str, str]] = {}
"""The test that fails without a switch."""


def plain_value(switch: str) -> object:
    """Return the value that code reads of a switch that is not there."""
    return PLAIN.get(switch, Profile.model_fields[switch].default)


def mutated(read: Callable[[Any, str], Any], switch: str) -> Callable[[Any, str], Any]:
    """Return a way of reading a profile in which one switch has its plain value for the code that acts."""
    plain = plain_value(switch)

    def read_mutated(profile: Any, name: str) -> Any:
        if name == switch:
            module = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001  (who reads it)
            if module.startswith(ACTING) and module != REPORTING:
                return plain
        return read(profile, name)

    return read_mutated


def pytest_configure() -> None:
    """Mutate the switch of the environment, as a plugin of pytest."""
    if switch := os.environ.get(VARIABLE):
        Profile.__getattribute__ = mutated(Profile.__getattribute__, switch)  # type: ignore[method-assign]


def survives(switch: str, test: str) -> bool:
    """Return whether a test is green although its switch is a no-op.

    Raises:
        SystemExit: The test cannot be run, so it tells nothing.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "scripts.mutate_switches", *test.split()],
        cwd=ROOT,
        env={**os.environ, VARIABLE: switch},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1}:  # 1: a test has failed
        sys.exit(f"{switch}: {test}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return done.returncode == 0


def main(asked: Iterable[str]) -> int:
    """Mutate the switches, print what came of each, and return the number of those that survive."""
    survivors = 0
    for switch in asked:
        test = TESTS[switch]
        survived = survives(switch, test)
        survivors += survived
        print(f"{'SURVIVES' if survived else 'killed':<9}{switch:<22}{test}", flush=True)
    print(f"{survivors} survivor(s)")
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:] or SWITCHES), 1))
