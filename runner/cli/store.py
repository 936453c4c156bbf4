"""``runner backup`` and ``runner restore``: copy and restore the store of a state directory.

The commands open the files directly: a backup needs no daemon, and a restore works when no daemon can start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from runner.base.errors import UsageError
from runner.base.readable import readable_size
from runner.cli.console import complain, say, say_json
from runner.cli.parameters import as_json
from runner.client.autostart import NoDaemon, state_dir
from runner.client.client import find

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("file", metavar="FILE")
@as_json
def backup(*, file: str, as_json: bool) -> None:
    """Write the present store to a new FILE, while the daemon runs or not.

    The store has jobs, attempts, events, decisions and schedules. Run directories are not in it.
    """
    from runner.adapters.sqlite.backup import back_up

    target = _absolute(file)
    try:
        directory = find(complain).version()["state_dir"]
    except NoDaemon:
        directory = state_dir(os.environ, os.geteuid())
    size = back_up(_absolute(directory) / "store.db", target)
    if as_json:
        say_json({"file": str(target), "bytes": size, "state_dir": directory})
    else:
        say(f"{file}: {readable_size(size)}, the store of {directory}")


@click.command()
@click.argument("file", metavar="FILE")
@as_json
def restore(*, file: str, as_json: bool) -> None:
    """Put the store of FILE, a copy from "runner backup", in the place of the present one.

    The daemon must be stopped. FILE is checked first, and the present store is kept under another name.
    Jobs submitted since the copy are unknown; jobs that have ended since run again from their
    checkpoints.
    """
    from runner.adapters.host.clock import SystemClock
    from runner.adapters.sqlite import backup as store_copies
    from runner.server.state_lock import hold_state

    source, directory = _absolute(file), _absolute(state_dir(os.environ, os.geteuid()))
    with hold_state(directory) as lock:
        lock.mark_leaving()  # commands that follow a job neither start a daemon meanwhile nor afterwards
        kept = store_copies.restore(source, directory / "store.db", SystemClock().now())
    if as_json:
        say_json({"file": str(source), "state_dir": str(directory), "kept": [str(path) for path in kept]})
        return
    say(f"{directory / 'store.db'}: restored from {file}")
    for path in kept:
        say(f"{path}: the earlier store; remove it when you do not need it any more")


def _absolute(path: str) -> Path:
    """Return a path from the root.

    Raises:
        UsageError: it is empty.
    """
    if not path:
        raise UsageError("'': no file has an empty name; give FILE a name")
    from pathlib import Path as AnyPath

    return AnyPath(path).absolute()
