"""Programs whose libraries take seconds to load: forked from one process that has loaded them.

What follows in a child is what ``python PROGRAM`` does, and its end is an interpreter's.  What such a child
starts with the same interpreter is forked, too.  The nursery cannot do it: it is one for each test process,
and has loaded what daemons need.
"""

import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import Event
from typing import Any

ROOT = Path(__file__).parents[3]
LOOK_S = 0.01
PR_SET_PDEATHSIG = 1
PATH = sys.path[1:]
"""Without the directory of this file, if this is the program."""


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

    def start(self, program: Path | str, *arguments: str, environ: Mapping[str, str], log: Path) -> Forked:
        """Begin a program in its own directory, or ``-m``, as a process group; ``log`` gets all it says."""
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
        process.kill()  # what was forked meanwhile may hold the other end of its input


class Born(SystemExit):
    """Leaves whatever a process was doing that has been forked to run something else."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__(70)
        self.argv = argv


TRAINER = "jobs.training.loop"
"""Library of our programs: PyTorch, and the rest of the trainer."""

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
"""Of processes that have loaded something, and of what is forked from them."""

PARENTS = ExitStack()
"""Ends them with the session."""


@cache
def parent_with(libraries: str) -> Preloaded:
    """Return the process of this session that has loaded a library, or several, between spaces."""
    return PARENTS.enter_context(preloaded(*libraries.split(), environ=ENVIRONMENT))


GIVEN = tuple(signature(subprocess.Popen._execute_child).parameters)  # type: ignore[attr-defined]


class Popen(subprocess.Popen[bytes]):
    """Forks what would be this interpreter, started anew."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        given = dict(zip(GIVEN, (self, args, *others), strict=True))
        if args[0] != sys.executable or "RANK" not in (given["env"] or {}):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            return
        for stream, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if given[name] != -1:
                os.dup2(given[name], stream)
        os.environ.clear()
        os.environ.update(given["env"])
        given["preexec_fn"]()
        Path("/proc/self/comm").write_text(f"RANK={os.environ['RANK']}")  # its first environment is another's
        raise Born(args[1:])


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
            os.setpgid(0, 0)
            return told
        else:
            with suppress(PermissionError, ProcessLookupError):  # it has done so, and is on its way
                os.setpgid(answer, answer)
        print(json.dumps(answer), flush=True)  # noqa: T201
    return None


def _become(told: dict[str, Any]) -> list[str]:
    """Take up what was told, and return the arguments of the interpreter."""
    program = told["argv"][0]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(told["environ"])
    if program != "-m":
        os.chdir(Path(program).parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(told["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    subprocess.Popen = Popen  # type: ignore[misc, assignment]
    return list(told["argv"])


def _run(argv: list[str]) -> None:
    """Run what the interpreter would with such arguments."""
    kind, *rest = argv[1:] if argv[0] == "-P" else argv
    sys.path[:] = PATH
    if kind == "-c":
        code, *arguments = rest
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


def _live(argv: list[str]) -> None:
    """Run a program; what it forks comes back here to run another one."""
    born = None
    try:
        _run(argv)
    except Born as child:
        born = child.argv
    if born is not None:
        _live(born)


if __name__ == "__main__":
    told = _serve(sys.argv[1:])
    if told is not None:
        _live(_become(told))
