"""``runner gpus``: print devices, their load, the jobs that hold them, and why a device is not allocated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from runner.cli import formatting
from runner.cli.console import complain, say_answer, say_table
from runner.cli.parameters import CommandGroup, as_json
from runner.client.client import find_or_start
from runner.client.http import quote_path

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB: Final = 1024**3
COLUMNS: Final = (
    "GPU", "UUID", "MODEL", "MEMORY", "UTIL", "TEMP", "POWER", "STATE", "SINCE", "JOB OR REASON",
)  # fmt: skip

NO_LIMIT_CPUS: Final = 2**20
"""So many CPUs stand for no limit: the daemon hands jobs to an engine with a queue of its own."""

SPARE: Final = ("POWER", "TEMP", "SINCE", "UUID", "MODEL", "UTIL", "MEMORY")
"""Columns that a narrow screen does without, the least missed first."""

Device = dict[str, Any]


def reason_given(ctx: click.Context, param: click.Parameter, given: str) -> str:
    """Return a reason of 1 to 200 characters."""
    if not 1 <= len(given.strip()) <= 200:
        raise click.BadParameter("must have 1 to 200 characters", ctx, param)
    return given


@click.group(cls=CommandGroup, invoke_without_command=True)
@as_json
@click.pass_context
def gpus(context: click.Context, *, as_json: bool) -> None:
    """List the devices: utilisation, state, jobs, and why a device is out of service.

    In a pipe: name, UUID, model, bytes in use, bytes in total, utilisation (%), temperature (C), power
    (W), state, since (UTC), jobs and reason, between tabs.
    """
    if context.invoked_subcommand is not None:
        return
    answer = find_or_start(complain).get("/v1/devices")
    devices: list[Device] = answer["devices"]
    if as_json or devices:
        shown = [cells(device, time.time()) for device in devices]
        say_table(COLUMNS, shown, map(plain_cells, devices), SPARE, objects=devices if as_json else None)
    if not devices:
        memory = answer["memory_bytes"] / GIB
        limits = f"{answer['cpus']:g} CPUs and {memory:.4g} GiB of memory are for jobs"
        if answer["cpus"] >= NO_LIMIT_CPUS:
            limits = "jobs run elsewhere, and the settings limit neither their CPUs nor their memory"
        complain(f"no GPU here; {limits}")


@gpus.command()
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True)
@click.option(
    "--reason", required=True, metavar="TEXT", callback=reason_given, help="The reason, visible to all users."
)
@as_json
def drain(*, devices: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Drain devices: they get no new jobs until "runner gpus resume", running jobs continue.

    DEVICE is a UUID, the beginning of one, or a name such as GPU-3. For root and the daemon's user.
    """
    client = find_or_start(complain)
    for device in devices:
        answer = client.post(f"/v1/devices/{quote_path(device)}/drain", {"reason": reason})["device"]
        has = f"; {', '.join(holders(answer))} still has it" if answer["jobs"] else ""
        say_answer(answer, f"{answer['name']} is drained{has}", as_json=as_json)


@gpus.command()
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True)
@as_json
def resume(*, devices: tuple[str, ...], as_json: bool) -> None:
    """Return drained, quarantined or dirty devices to service, after the daemon has checked them.

    Memory in use on a device that belongs to no process counts as normal from now on.
    """
    client = find_or_start(complain)
    for device in devices:
        answer = client.post(f"/v1/devices/{quote_path(device)}/resume", {})["device"]
        why = f": {answer['reason']}" if answer["reason"] and not answer["jobs"] else ""
        say_answer(answer, f"{answer['name']} is {answer['state']}{why}", as_json=as_json)


def holders(device: Device) -> list[str]:
    """Return the jobs that hold a device: ``job 12 (train, ann)``."""
    return [f"job {job['id']} ({job['name']}, {job['owner']})" for job in device["jobs"]]


def cells(device: Device, now: float) -> Iterator[str]:
    """Yield the cells of one device on a terminal."""
    yield device["name"]
    yield device["uuid"]
    yield device["model"]
    used, total = (_gib(device[key]) for key in ("used_bytes", "memory_bytes"))
    yield f"{used}/{total}G"
    yield _known(device["util"], "%")
    yield _known(device["temperature_c"], "C")
    yield _known(device["power_w"], "W")
    yield device["state"]
    yield formatting.age(device["since"], now)
    has = ", ".join(holders(device))
    reason = "" if device["state"] == "allocated" else device["reason"]  # that reason names the holder
    yield "; ".join(each for each in (has, formatting.intruders(device), reason) if each) or "-"


def plain_cells(device: Device) -> Iterator[object]:
    """Yield the cells of one device in a pipe."""
    for key in ("name", "uuid", "model", "used_bytes", "memory_bytes", "util", "temperature_c", "power_w"):
        yield device[key]
    yield device["state"]
    yield device["since"]
    yield ",".join(job["id"] for job in device["jobs"])
    yield device["reason"]


def _gib(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / GIB:.1f}"


def _known(number: float | None, unit: str) -> str:
    return "-" if number is None else f"{number:.0f}{unit}"
