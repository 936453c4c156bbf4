"""``runner dash``: the dashboard in a browser."""

from __future__ import annotations

import os
import socket
import time
import webbrowser
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from runner.base.errors import UsageError
from runner.cli.console import complain, say
from runner.client.autostart import remote_host
from runner.client.client import find_or_start

if TYPE_CHECKING:
    from runner.dashboard.access import Access
    from runner.dashboard.listen import Address


@click.command()
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="PORT, HOST:PORT, or the path of a socket.  [a free port of 127.0.0.1; on a shared server a socket]",
)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option(
    "--behind-proxy",
    "proxied",
    metavar="NAME",
    help="Answer to this name, too, without a login of our own: a reverse proxy in front asks for one.",
)
@click.option("--open/--no-open", "opens", default=None, help="Open a browser.  [if there is one]")
def dash(*, listen: str | None, read_only: bool, proxied: str | None, opens: bool | None) -> None:
    """Show the machine and its jobs in a browser.

    The command runs until Ctrl-C and prints a link that works once. The pages show and change what you
    may. On a shared server it listens at a socket of yours, and prints the line of ssh that carries it
    to your own computer.
    """
    from runner.dashboard.access import LOOPBACK, Access
    from runner.dashboard.listen import listening, parse_address, usual_address
    from runner.dashboard.serve import serve

    if proxied is not None and not read_only:
        raise UsageError("--behind-proxy: needs --read-only, because everybody behind the proxy acts as you")
    if proxied is not None and (listen is None or parse_address(listen).path is None):
        fact = "every user of this machine reaches a port; name the path of a socket with --listen"
        raise UsageError(f"--behind-proxy: {fact}")
    client = find_or_start(complain)
    shared = client.endpoint.state_dir is None and remote_host(os.environ) is None
    address = parse_address(listen) if listen else usual_address(os.environ, shared=shared)
    hosts = LOOPBACK if proxied is None else LOOPBACK | {proxied.lower()}
    access = Access(time.monotonic, hosts, needs_login=proxied is None, read_only=read_only)
    with listening(address) as listener, TemporaryDirectory(prefix="runner-dash-") as private:
        tell = partial(_tell, access, address, listener, Path(private), opens=opens)
        serve(client, access, listener, tell)


def _tell(
    access: Access, address: Address, listener: socket.socket, private: Path, *, opens: bool | None
) -> None:
    """Print where the dashboard is, and open it where there is a browser.

    Everybody on the machine can read the arguments of a browser, so it gets a file with the link.
    """
    from runner.dashboard.listen import FORWARDED_PORT

    query = f"{access.place}/login?ticket={access.new_ticket()}" if access.needs_login else "/"
    if address.path is not None:
        complain("on your own computer, type the first line and open the second one; Ctrl-C here ends it")
        say(f"ssh -N -L {FORWARDED_PORT}:{address.path} {socket.gethostname()}")
        say(f"http://localhost:{FORWARDED_PORT}{query}")
        return
    host, port = listener.getsockname()[:2]
    link = f"http://{f'[{host}]' if ':' in host else host}:{port}{query}"
    complain("open this link, which works once; Ctrl-C ends the dashboard")
    say(link)
    if opens or (opens is None and _has_browser()):
        page = private / "open.html"
        page.touch(mode=0o600)
        page.write_text(f'<meta http-equiv="refresh" content="0;url={link}"><a href="{link}">runner</a>\n')
        webbrowser.open(page.as_uri())


def _has_browser() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
