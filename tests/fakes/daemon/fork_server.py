"""Daemons and commands that need load nothing: forked from one process for each test worker.

To load is most of what their start costs, and the same each time.  What follows is what
``python -m MODULE`` does.  A daemon that a command brings back is started as its user's would be,
and so is the first command of each kind.
"""

import ctypes
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

LOADED: Final = (
    "pytest",
    "runner.cli.daemon",
    "runner.server.main",
    "runner.adapters.docker.executor",
)


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
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
