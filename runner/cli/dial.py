"""``runner dial``: what a client on another machine runs here by ssh."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress

import click

from runner.base.durable import write_whole
from runner.cli.console import complain
from runner.client.autostart import NoDaemon, connect
from runner.client.client import find, find_or_start
from runner.client.relay import copy
from runner.client.remote import NO_START


@click.command(hidden=True)
@click.option("--where", is_flag=True, help="Print the path of the daemon's socket.")
def dial(*, where: bool) -> None:
    """Join standard input and output with the daemon's socket; a daemon of yours is started."""
    no_start = os.environ.get(NO_START) == "1"
    try:
        path = (find() if no_start else find_or_start(complain)).endpoint.socket
    except NoDaemon:
        if no_start:  # the other side says it
            click.get_current_context().exit(4)
        raise
    if where:
        click.echo(path)
        return
    with connect(path) as connection:
        connection.settimeout(None)
        sender = threading.Thread(target=_send, args=(connection,), daemon=True)
        sender.start()
        copy(connection.recv, lambda piece: write_whole(sys.stdout.fileno(), piece))
    os._exit(0)  # the other thread still reads


def _send(connection: socket.socket) -> None:
    """Pass on what the client sends; the daemon is told when the client has gone, and ends its answer."""
    copy(lambda size: os.read(sys.stdin.fileno(), size), connection.sendall)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
