"""Looks at the machine as ``runner doctor`` does, when a daemon starts and once a day, and warns in its log.

Only a machine with GPUs is looked at.  It happens beside the start, because a driver may hang.
"""

import os
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from runner.adapters.doctor import FactCollector, groups_of_this_process
from runner.adapters.host_torch import cuda_of_host
from runner.adapters.image_locks import cuda_of_images
from runner.base.threads import PeriodicThread
from runner.core.doctor import Machine, Verdict, examine, has_gpus
from runner.files.settings.model import Settings
from runner.server.adapters import image_settings

EVERY_S: Final = 86400.0

log = structlog.get_logger()


def collect(directory: Path, settings: Settings, root: Path = Path("/")) -> Machine:
    """Return the facts about this machine, for a daemon with a state directory and settings."""
    from runner.adapters.docker.engine import describe_engine  # noqa: PLC0415  loads the SDK

    collector = FactCollector(root, directory)
    engine = describe_engine(settings.engine) if settings.executor in {"auto", "docker"} else None
    named = settings.engine or os.environ.get("DOCKER_HOST") or settings.executor == "docker"
    if engine is not None and engine.absent and not named:  # then the daemon runs plain processes, too
        engine = None
    images = image_settings(directory, settings)
    return Machine(
        nvidia=collector.nvidia(),
        amd=collector.amd(),
        engine=engine,
        host=collector.host(),
        wanted_cuda=cuda_of_host() if engine is None else cuda_of_images(images),
        injection=settings.gpu_injection,
        groups=groups_of_this_process(),
    )


def watch_machine(directory: Path, settings: Settings) -> PeriodicThread:
    """Return a thread that looks at the machine and warns; it is not started yet."""
    return PeriodicThread("doctor", EVERY_S, partial(_warn_of, directory, settings), begin_at_once=True)


def _warn_of(directory: Path, settings: Settings) -> None:
    facts = FactCollector()
    if has_gpus(facts.nvidia(), facts.amd()):  # elsewhere the SDK of the engine would be loaded for nothing
        warn(collect(directory, settings))


def warn(machine: Machine) -> None:
    """Log every problem and warning about a machine."""
    for finding in examine(machine):
        told = {"subject": finding.subject, "fact": finding.fact, "advice": finding.advice}
        if finding.verdict is Verdict.PROBLEM:
            log.error("doctor.problem", **told)
        elif finding.verdict is Verdict.WARNING:
            log.warning("doctor.warning", **told)
