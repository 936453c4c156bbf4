"""The programs of ``jobs.inside``: their copies in the run directory, and the commands that start them.

A copy lies where the job can read it and not change it.  So no image has to contain it, and a terminal of an
older runner goes on with its own.
"""

import sys
from typing import Final

from jobs.contract import RunPaths, inside_source
from runner.agent.ports import RunDirectory
from runner.core.ports.exec import TerminalSize

TERMINAL: Final = "terminal"
RELAY: Final = "relay"
GANG: Final = "gang"
OWN: Final = "own"
"""Names of programs of ``jobs.inside``."""

MAIN: Final = "main"
"""The name of the terminal of the job's own program."""

NO_PYTHON: Final = 97
"""Exit code of a program that found no Python to run it."""

FIND_PYTHON: Final = """\
for python in "$1" python3 python; do
  if command -v "$python" >/dev/null 2>&1; then shift; exec "$python" -I -S "$@"; fi
done
echo "this image has no Python, which holds terminals, forwards ports and starts gangs; add one" >&2; exit 97
"""
"""A shell script that runs a Python file with the first Python that there is."""


def install(directory: RunDirectory, attempt: int, name: str) -> None:
    """Write the copy of a program for an attempt, unless an earlier one is there; may raise Unavailable."""
    if not directory.has_kept(attempt, f"{name}.py"):
        directory.keep(attempt, f"{name}.py", inside_source(name))


def terminal_command(  # noqa: PLR0913  (the parts of a command line)
    paths: RunPaths,
    name: str,
    argv: tuple[str, ...],
    *,
    in_container: bool,
    is_main: bool = False,
    size: TerminalSize = TerminalSize(),  # noqa: B008  (frozen)
) -> tuple[str, ...]:
    """Return the command that runs ``argv`` on a terminal that people can leave.

    ``paths`` are those that the job sees.  The output of the job's own program is the log, too.
    """
    where = (str(paths.terminals), name, str(size.rows), str(size.columns))
    log = ("--log",) if is_main else ()
    return (*_python(paths, TERMINAL, in_container=in_container), *where, *log, "--", *argv)


def relay_command(paths: RunPaths, name: str, port: int, *, in_container: bool) -> tuple[str, ...]:
    """Return the command that connects each connection to a socket of the job with a port of its loopback."""
    program = _python(paths, RELAY, in_container=in_container)
    return (*program, str(paths.terminals), name, str(port))


def gang_command(
    paths: RunPaths, processes: int, argv: tuple[str, ...], *, in_container: bool
) -> tuple[str, ...]:
    """Return the command that runs ``argv`` as so many processes of one attempt."""
    program = _python(paths, GANG, in_container=in_container)
    return (*program, str(paths.attempt_dir), str(processes), "--", *argv)


def own_command(
    paths: RunPaths, projects: str, path: str, argv: tuple[str, ...], *, in_container: bool
) -> tuple[str, ...]:
    """Return the command that runs ``argv`` with the user's own projects, in JSON, and a path of Python."""
    program = _python(paths, OWN, in_container=in_container)
    return (*program, str(paths.attempt_dir / "own"), projects, path, "--", *argv)


def _python(paths: RunPaths, name: str, *, in_container: bool) -> tuple[str, ...]:
    python = "python3" if in_container else sys.executable
    return ("/bin/sh", "-c", FIND_PYTHON, "runner", python, str(paths.inside_program(name)))
