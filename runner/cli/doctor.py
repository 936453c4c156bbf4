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

    Each line is a finding: ok, warning, problem, unknown or absent, what was looked at, the fact, and the
    next step. In a pipe, tabs separate these. The exit code is 4 if there is a problem.
    """
    from runner.core.doctor import Verdict, examine  # noqa: PLC0415  only this command pays for it
    from runner.files.settings.model import load_settings  # noqa: PLC0415

    settings = load_settings(None)
    machine = _collect(settings)
    found = list(examine(machine))
    if tried is not None:
        found += _tries(machine, settings, tried)
    for finding in found:
        _print(finding, as_json=as_json)
    if any(finding.verdict is Verdict.PROBLEM for finding in found):
        sys.exit(PROBLEMS_EXIT)


def _collect(settings: Settings) -> Machine:
    from runner.adapters.docker.doctor import describe_engine  # noqa: PLC0415
    from runner.adapters.doctor import FactCollector, groups_of_this_process  # noqa: PLC0415
    from runner.adapters.image_locks import cuda_of_images  # noqa: PLC0415
    from runner.client.autostart import state_dir  # noqa: PLC0415
    from runner.core.doctor import Machine  # noqa: PLC0415
    from runner.server.adapters import image_settings  # noqa: PLC0415

    directory = Path(state_dir(os.environ, os.geteuid()))
    collector = FactCollector(state_dir=directory)
    return Machine(
        nvidia=collector.nvidia(),
        amd=collector.amd(),
        engine=None if settings.executor == "process" else describe_engine(settings.engine),
        host=collector.host(),
        wanted_cuda=cuda_of_images(image_settings(directory, settings)),
        injection=settings.gpu_injection,
        groups=groups_of_this_process(),
    )


def _tries(machine: Machine, settings: Settings, image: str) -> Iterator[Finding]:
    """Yield what came of the image on each NVIDIA GPU, or on the CPU where there is none."""
    from runner.adapters.docker.doctor import try_image  # noqa: PLC0415
    from runner.core.doctor import EngineFacts, choose_injection  # noqa: PLC0415

    choice = choose_injection(machine.engine or EngineFacts(), machine.injection)
    devices: list[str | None] = [str(number) for number in range(len(machine.nvidia.gpus))]
    for device in devices or [None]:
        yield try_image(settings.engine, image, device, choice.how)


def _print(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        say_json(asdict(finding))
    elif on_terminal():
        advice = f"\n          {click.style('->', dim=True)} {finding.advice}" if finding.advice else ""
        colour = {"ok": "green", "warning": "yellow", "problem": "red"}.get(finding.verdict)
        say(f"{click.style(f'{finding.verdict:<8}', fg=colour)}  {finding.subject}: {finding.fact}{advice}")
    else:
        say_row(finding.verdict, finding.subject, finding.fact, finding.advice or "-")
