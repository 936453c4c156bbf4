"""``runner forward``: a port inside of a job on the loopback of this machine."""

import re
import sys

import click

from runner.cli.console import complain, say
from runner.cli.parameters import the_job
from runner.client.client import find_or_start

_PORTS = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")
LARGEST = 65535


def ports(ctx: click.Context, param: click.Parameter, given: str) -> tuple[int, int]:
    """Return the port inside of the job and that of this machine."""
    match = _PORTS.fullmatch(given)
    local, inside = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if not (0 < inside <= LARGEST and local <= LARGEST):
        fact = f"{given[:60]!r} is not REMOTE or LOCAL:REMOTE, from 1 to {LARGEST}"
        raise click.BadParameter(fact, ctx, param)
    return inside, local


@click.command()
@the_job
@click.argument("port", metavar="[LOCAL:]REMOTE", callback=ports)
def forward(job: str, port: tuple[int, int]) -> None:
    """Show a port inside of a running job on this machine's loopback, for you alone.

    For TensorBoard, Jupyter or a debugger; the job needs no network. LOCAL is by default the same port;
    0 is any that is free. The command ends with the job, or with Ctrl-C.

    \b
    runner forward JOB 6006
    runner forward JOB 0:8888
    """
    from runner.client.forward import Forwarder, listen

    inside, local = port
    with listen(local) as listener:
        forwarder = Forwarder(find_or_start(complain), job, inside, complain)
        sys.exit(forwarder.run(listener, lambda at: say(f"{at} leads to port {inside} of {job}")))
