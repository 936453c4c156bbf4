"""``runner doctor``: say what is right and wrong on this machine for jobs on GPUs.  Needs no daemon."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.console import on_terminal, say, say_json, say_row
from runner.cli.parameters import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.core.doctor import Finding, Machine
    from runner.files.settings.model import Settings

PROBLEMS_EXIT = 4
"""As for an engine that does not answer: jobs on these GPUs cannot run now."""


@click.command()
@click.option(
    "--image", "tried", metavar="IMAGE", help="Also start this image on each device and compute in it."
)
@as_json
def doctor(*, tried: str | None, as_json: bool) -> None:
    """Check the drivers, device nodes, container engine and limits of this machine.

    Each line is a finding: ok, warning, problem, unknown or absent; what was looked at, the fact, and
    the next step. The exit code is 4 if there is a problem.
    """
    from runner.client.autostart import state_dir
    from runner.core.doctor import Verdict, examine
    from runner.files.settings.model import load_settings
    from runner.server.doctor import collect
    from runner.server.plugins import findings

    settings = load_settings(None)
    machine = collect(Path(state_dir(os.environ, os.geteuid())), settings)
    found = [*examine(machine), *findings()]
    if tried is not None:
        found += _tries(machine, settings, tried)
    for finding in found:
        _print(finding, as_json=as_json)
    if any(finding.verdict is Verdict.PROBLEM for finding in found):
        sys.exit(PROBLEMS_EXIT)


def _tries(machine: Machine, settings: Settings, image: str) -> Iterator[Finding]:
    """Yield the outcome of the image on each GPU, or on the CPU where there is none."""
    from runner.adapters.docker.doctor import TriedDevice, try_image
    from runner.core.doctor import EngineFacts, choose_injection

    how = choose_injection(machine.engine or EngineFacts(), machine.injection).how
    devices: list[TriedDevice | None] = [
        TriedDevice(label, how, uuid) for label, uuid in machine.nvidia.given
    ]
    if machine.amd.kfd is not None:
        kfd = Path(machine.amd.kfd.path)
        devices += [TriedDevice(node.path, nodes=(kfd, Path(node.path))) for node in machine.amd.render]
    for device in devices or [None]:
        yield try_image(settings.engine, image, device)


def _print(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        say_json(asdict(finding))
    elif on_terminal():
        say(terminal_text(finding))
    else:
        say_row(finding.verdict, finding.subject, finding.fact, finding.advice or "-")


def terminal_text(finding: Finding) -> str:
    """Return a finding as a terminal shows it, with colours: a line, and another one for the next step."""
    advice = f"\n          {click.style('->', dim=True)} {finding.advice}" if finding.advice else ""
    colour = {"ok": "green", "warning": "yellow", "problem": "red"}.get(finding.verdict)
    return f"{click.style(f'{finding.verdict:<8}', fg=colour)}  {finding.subject}: {finding.fact}{advice}"
