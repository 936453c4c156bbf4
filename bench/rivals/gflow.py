"""A queue of gflow, in a virtual environment, a home and a tmux server of its own.

gflow counts only GPUs: without GPUs it does not limit the number of concurrent jobs.  Jobs wait for another
job through a dependency.  gflow types each job into its own shell, so the search path of the shells must
include gflow's commands.
"""

import os
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals.protocol import REST_LIMIT_S, Queue, run_command
from bench.support import interleave
from bench.support.packages import find, may_fetch, require
from bench.support.result import CannotMeasure

PACKAGE: Final = "runqd==0.4.18"
PROGRAM: Final = "gflowd"
START_LIMIT_S: Final = 20.0


@contextmanager
def running_queue(directory: Path, *, may_install: bool) -> Iterator[Queue]:
    """Yield a running gflow queue; stop its daemon and its shells at the end.

    Raises:
        CannotMeasure: gflow is missing and may not be installed, or does not start.
    """
    require(("tmux",), ("tmux",), may_install=may_install)
    programs = install(directory, may_install=may_install)
    environment = prepare_home(directory, programs)
    there = GflowQueue(directory, programs, environment)
    try:
        there.said(PROGRAM, "start")
        interleave.wait_for("gflow's daemon", there.answers, START_LIMIT_S, 0.1)
        yield there
    finally:
        with suppress(CannotMeasure):  # it has not started
            there.said(PROGRAM, "stop")
        subprocess.run([find("tmux"), "kill-server"], env=environment, capture_output=True, check=False)


@dataclass(slots=True)
class GflowQueue:
    """Satisfies ``Queue``; a job that needs more than one slot blocks the later ones."""

    directory: Path
    programs: Path
    environment: dict[str, str]
    before: str | None = None

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        behind = () if self.before is None else ("--depends-on", self.before)
        said = self.said("gbatch", "--auto-close", *behind, *argv)
        number = said.partition("batch job ")[2].split()[0]
        if slots > 1:
            self.before = number
        return number

    def submit_typed(self, argv: Sequence[str]) -> str:
        return self.submit(argv)

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        del jobs
        interleave.wait_for("the end of gflow's jobs", self._rests, REST_LIMIT_S, 0.1)
        self.before = None

    def _rests(self) -> bool:
        return len(self.said("gqueue", "-s", "Queued,Running", "-f", "JOBID").splitlines()) <= 1

    def answers(self) -> bool:
        try:
            self.said("gqueue")
        except CannotMeasure:
            return False
        return True

    def said(self, program: str, *arguments: str) -> str:
        return run_command([str(self.programs / program), *arguments], self.environment, self.directory)


def install(directory: Path, *, may_install: bool) -> Path:
    """Return the directory of gflow's programs; install them if necessary.

    Raises:
        CannotMeasure: gflow is missing and may not be installed.
    """
    try:
        return Path(find(PROGRAM)).parent
    except CannotMeasure as missing:
        reason = may_fetch(may_install=may_install)
        if reason:
            raise CannotMeasure(f"{missing}, and {reason}") from missing
    place = directory.parent / "gflow"  # installed once, removed with the scratch directory
    if (place / "bin" / PROGRAM).exists():
        return place / "bin"
    venv.create(place, with_pip=True)
    print(f"installing {PACKAGE} into {place} (RUNNER_NO_INSTALL=1 forbids it)", file=sys.stderr, flush=True)
    run_command([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE], dict(os.environ))
    return place / "bin"


def prepare_home(directory: Path, programs: Path) -> dict[str, str]:
    """Create a home directory for gflow, and return the environment variables that select it."""
    places = {
        "HOME": directory,
        "XDG_CONFIG_HOME": directory / "config",
        "XDG_DATA_HOME": directory / "share",
        "XDG_STATE_HOME": directory / "state",
        "XDG_CACHE_HOME": directory / "cache",
        "XDG_RUNTIME_DIR": directory / "run",
        "TMUX_TMPDIR": directory / "tmux",
    }
    for place in places.values():
        place.mkdir(mode=0o700, exist_ok=True)
    path = os.pathsep.join((str(programs), os.environ.get("PATH", os.defpath)))
    (directory / ".bash_profile").write_text(f"export PATH={path}\n")
    (places["XDG_CONFIG_HOME"] / "gflow").mkdir()
    configuration = f'[daemon]\nhost = "localhost"\nport = {_free_port()}\n'
    (places["XDG_CONFIG_HOME"] / "gflow" / "gflow.toml").write_text(configuration)
    others = {name: text for name, text in os.environ.items() if name not in {"TMUX", "TMUX_PANE"}}
    return (
        others | {name: str(place) for name, place in places.items()} | {"PATH": path, "SHELL": "/bin/bash"}
    )


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])
