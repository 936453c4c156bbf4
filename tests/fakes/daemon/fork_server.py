"""Daemons and commands that need load nothing: forked from one process for each test worker.

To load is most of what their start costs, and the same each time.  What follows is what
``python -m MODULE`` does.  A daemon that a command brings back is started as its user's would be,
and so is the first command of each kind.  The spawner of a daemon that was forked is forked, too.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from tests.fakes.daemon.preloaded import GIVEN

LOADED: Final = (
    "pytest",
    "runner.cli.daemon",
    "runner.server.main",
    "runner.adapters.docker.executor",
    "tests.fakes.daemon.warm_worker",
)
SPAWNER: Final = "runner.adapters.host.spawner"


@cache
def _nursery() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    return context


def born(
    module: str,
    *arguments: str,
    environ: Mapping[str, str],
    log: Path,
    errors: Path | None = None,
    where: Path = Path("/"),
) -> BaseProcess:
    """Return a process, leader of a session, that has begun to run a module.

    ``log`` gets all it says, without what it says on standard error if that has a file of its own.
    """
    said = (str(log), str(errors or log))
    process = _nursery().Process(target=_live, args=(module, arguments, dict(environ), said, str(where)))
    process.start()
    return process


class Popen(subprocess.Popen[bytes]):
    """Forks a spawner of workers from the daemon, which has loaded all that it would load."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        given = dict(zip(GIVEN, (self, args, *others), strict=True))
        if SPAWNER not in args:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            return
        try:
            _become_spawner(list(args[args.index(SPAWNER) :]), given)
        except BaseException:  # noqa: BLE001  (nothing else may run here, not even an end)
            traceback.print_exc()
        finally:
            os._exit(1)


def _become_spawner(argv: list[str], given: Mapping[str, Any]) -> None:
    """Do what a new program begins with, and serve; the process ends here."""
    os.dup2(given["p2cread"], 0)
    os.dup2(given["c2pwrite"], 1)
    kept = 2
    for descriptor in sorted(given["pass_fds"]):
        os.closerange(kept + 1, descriptor)
        kept = descriptor
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    Path("/proc/self/comm").write_text("spawner")  # its command line is another's
    sys.argv = argv
    import_module(SPAWNER).main()
    os._exit(0)


def _live(
    module: str, arguments: tuple[str, ...], environ: dict[str, str], said: tuple[str, str], where: str
) -> None:
    os.setsid()
    os.chdir(where)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in enumerate(said, start=1):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644), stream)
    for library in Path(environ.get("LD_LIBRARY_PATH", os.devnull)).glob("*.so*"):
        ctypes.CDLL(str(library))  # where they are is read when a program starts; what is there has its name
    subprocess.Popen = Popen  # type: ignore[misc, assignment]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
