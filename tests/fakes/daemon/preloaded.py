"""Programs whose libraries take seconds to load: forked from one process that has loaded them.

What follows in a child is what ``python PROGRAM`` does, and its end is an interpreter's.  The nursery
cannot do it: it is one for each test process, and has loaded what daemons need.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

ROOT = Path(__file__).parents[3]
LOOK_S = 0.01


class Forked:
    """One child of the process that has loaded everything, as ``subprocess.Popen`` would show it."""

    def __init__(self, parent: "Preloaded", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.ask({"look": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            Event().wait(LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to it, if it has not ended."""
        if self.poll() is None:  # until its end has been looked at, its pid is nobody else's
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as nothing can be prepared for."""
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that has loaded the libraries."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def start(self, program: Path, *arguments: str, environ: Mapping[str, str], log: Path) -> Forked:
        """Begin a program in its own directory; ``log`` gets all it says."""
        told = {"argv": [str(program), *arguments], "environ": dict(environ), "log": str(log)}
        return Forked(self, self.ask(told))

    def ask(self, told: dict[str, Any]) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(told), file=stdin, flush=True)
        return json.loads(stdout.readline())


@contextmanager
def preloaded(*libraries: str, environ: Mapping[str, str]) -> Iterator[Preloaded]:
    """Yield a process that has loaded some libraries."""
    with subprocess.Popen(
        [sys.executable, __file__, *libraries],
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Preloaded(process)


def _serve(libraries: list[str]) -> dict[str, Any] | None:
    """Answer until nobody asks any more; in a child, return what it is to be."""
    for library in libraries:
        import_module(library)
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        if "look" in told:
            pid, status = os.waitpid(told["look"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            return told
        print(json.dumps(answer), flush=True)  # noqa: T201
    return None


def _become(told: dict[str, Any]) -> None:
    program, *_ = sys.argv = told["argv"]
    directory = Path(program).parent
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(directory)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(told["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path[0] = str(directory)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    child = _serve(sys.argv[1:])
    if child is not None:
        _become(child)
