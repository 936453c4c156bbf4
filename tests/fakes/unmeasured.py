"""Processes of which nobody counts the lines they run: daemons, commands and trainings beside a test.

Most of them end by a kill and leave no count, and to count makes each start half as slow again.  What
they run, the unit tests run too, where it is counted.
"""

from collections.abc import Mapping


def unmeasured(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python does not count which lines of it run."""
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}
