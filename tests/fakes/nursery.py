"""Daemons that need load nothing: forked from one process for each test worker, which has loaded it all.

To load is most of what the start of a daemon costs, and the same each time.  What follows is what
``runner serve`` does.  A daemon that a command brings back is started as its user's would be, and so is
one that shall find other libraries: where they are is read when a program starts.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from runner.cli.main import main

RUNNER: Final = (sys.executable, "-P", "-m", "runner.cli.main")
LOADED: Final = ["runner.cli.main", "runner.cli.daemon", "runner.app", "runner.adapters.docker_engine"]


@cache
def _nursery() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context


def born(state: Path, environ: Mapping[str, str]) -> BaseProcess:
    """Return a process that has begun to be the daemon of a state directory; its log is there."""
    process = _nursery().Process(target=_serve, args=(str(state), dict(environ)))
    process.start()
    return process


def _serve(state: str, environ: dict[str, str]) -> None:
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environ)
    log = os.open(f"{state}/daemon.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, stream)
    arguments = ["serve", "--state-dir", state]
    if "LD_LIBRARY_PATH" in environ:
        os.execve(sys.executable, [*RUNNER, *arguments], environ)  # noqa: S606  there is no shell in it
    sys.argv = [RUNNER[-1], *arguments]
    main()
