"""``runner forward``: a port inside of a job on the loopback of this machine."""

import re
import sys

import click

from runner.cli.console import complain, say
from runner.cli.parameters import the_job
from runner.client.client import find_or_start

_PORTS = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
LARGEST = 65535


def ports(ctx: click.Context, param: click.Parameter, given: str) -> tuple[int, int]:
    """Return the port inside of the job and that of this machine."""
    match = _PORTS.fullmatch(given)
    found = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (0 < found[0] <= LARGEST and found[1] <= LARGEST):
        raise click.BadParameter(f"{given[:60]!r} is not PORT or PORT:LOCAL, from 1 to {LARGEST}", ctx, param)
    return found


@click.command()
@the_job
@click.argument("port", metavar="PORT[:LOCAL]", callback=ports)
def forward(job: str, port: tuple[int, int]) -> None:
    """Show a port inside of a running job on this machine's loopback, for you alone.

    TensorBoard, Jupyter or a debugger listen inside of the job, which needs no network for that. LOCAL is
    the port of this machine, by default the same one; 0 is any that is free. Processes of other users are
    turned away. The command ends with the job, or with Ctrl-C.

    \b
    runner forward JOB 6006
    runner forward JOB 8888:0
    """  # noqa: D301  click wants the character
    from runner.client.forward import Forwarder, listen  # noqa: PLC0415  not needed for --help

    inside, local = port
    with listen(local) as listener:
        forwarder = Forwarder(find_or_start(complain), job, inside, complain)
        sys.exit(forwarder.run(listener, lambda at: say(f"{at} leads to port {inside} of {job}")))
