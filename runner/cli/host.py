"""``runner host``: names of servers that commands are for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from runner.base.durable import publish
from runner.base.errors import UsageError
from runner.cli.console import on_terminal, say_table
from runner.client.remote import VARIABLE, chosen_host, hosts_file, parse_host, read_hosts


@click.group()
def host() -> None:
    """Name the servers that commands are for.

    "runner --host ssh://USER@SERVER list" asks the daemon of that server by ssh. A name stands for such
    an address; the one in use needs no --host. RUNNER_HOST names one for a shell; empty, this machine.
    """


@host.command()
@click.argument("name")
@click.argument("address")
def add(name: str, address: str) -> None:
    """Name an ADDRESS, ssh://USER@SERVER[:PORT][?command=/path/to/runner]."""
    if not name.isidentifier() and not name.replace("-", "_").isidentifier():
        raise UsageError(f"{name}: a name has letters, digits, - and _")
    if "://" not in address:
        raise UsageError(f"{address}: give ssh://USER@SERVER[:PORT]")
    parse_host(address, os.environ)
    known = read_hosts(os.environ)
    known["hosts"][name] = address
    _write(known)


@host.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget a name."""
    known = read_hosts(os.environ)
    if known["hosts"].pop(name, None) is None:
        raise UsageError(f"{name}: is not a known host; runner host list")
    known["use"] = None if known["use"] == name else known["use"]
    _write(known)


@host.command()
@click.argument("name", required=False)
@click.option("--none", is_flag=True, help="Commands are for this machine again.")
def use(name: str | None, *, none: bool) -> None:
    """Let commands be for a host unless they say another one."""
    if (name is None) == (not none):
        raise UsageError("runner host use: give a NAME, or --none for this machine")
    known = read_hosts(os.environ)
    if name is not None and name not in known["hosts"]:
        raise UsageError(f"{name}: is not a known host; runner host add {name} ssh://USER@SERVER")
    known["use"] = name
    _write(known)


@host.command("list")
def list_hosts() -> None:
    """List the named hosts; ``*`` is the one that commands are for."""
    chosen = chosen_host(os.environ)
    rows = [
        ("*" if name == chosen else "", name, url) for name, url in read_hosts(os.environ)["hosts"].items()
    ]
    say_table(("", "NAME", "ADDRESS"), rows, empty="no host has a name")
    if on_terminal() and chosen is not None and os.environ.get(VARIABLE):
        click.echo(f"{VARIABLE} says {chosen}")


def _write(known: dict[str, Any]) -> None:
    path = Path(hosts_file(os.environ))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, json.dumps(known, indent=1).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
