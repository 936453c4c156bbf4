"""The options of ``sbatch`` that say what a job needs; pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from runner.core.ports.executor import BatchRequest, GpuRequest

MARGIN: Final = timedelta(minutes=2)
"""Beyond the job's own time limit and its grace: the runner's deadline decides, Slurm's is a backstop."""


USUAL_PRIORITY: Final = 50
"""The priority of a job whose file names none.  Nobody gets ahead of others in Slurm by a higher one."""

_TYPE: Final = re.compile(r"[a-z0-9_.-]+")
"""A type in ``Gres``: a comma or a colon would ask for more."""

OF_NODE: Final = ("RUNNER_NODE", "RUNNER_NODES", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
"""Variables that ``node.sh`` and Slurm set, and that the program on each of several nodes gets."""


@dataclass(frozen=True, slots=True)
class SlurmRules:
    """Rules of the operator's settings for jobs in Slurm."""

    partition: str | None = None
    """Of jobs that name none; None: Slurm's default."""
    account: str | None = None
    qos: str | None = None
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    """The type in ``Gres`` by a part of a model's name, both in lower case."""
    classes: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """Partition and QOS of the jobs of a priority class that name none."""
    nice_per_priority: int = 100
    """By how much each point of priority below ``USUAL_PRIORITY`` lowers the priority in Slurm; 0: not."""


def resource_options(request: BatchRequest, rules: SlurmRules) -> list[str]:
    """Return the options for the resources of an attempt, and those that its job file asks for.

    Further options come first: none overrides one of the runner's own.
    """
    limits, batch = request.limits, request.options
    partition, qos = rules.classes.get(request.priority_class, (None, None))
    nice = max(USUAL_PRIORITY - request.priority, 0) * rules.nice_per_priority
    named = (
        ("partition", batch.partition or partition or rules.partition),
        ("account", batch.account or rules.account),
        ("qos", batch.qos or qos or rules.qos),
        ("constraint", batch.constraint),
        ("reservation", batch.reservation),
    )
    return [
        *batch.extra,
        f"--nodes={request.nodes}",
        f"--ntasks={request.nodes}",
        *(["--ntasks-per-node=1"] if request.nodes > 1 else []),
        f"--cpus-per-task={max(math.ceil(limits.cpus), 1)}",
        f"--mem={math.ceil(limits.memory_bytes / 2**20)}M",
        *_gpus(request.gpus, rules.gpu_types),
        *_time(request.time_left, request.grace),
        *([f"--nice={nice}"] if nice else []),
        *(f"--{name}={value}" for name, value in named if value is not None),
    ]


def _gpus(wanted: GpuRequest, types: Mapping[str, str]) -> Iterator[str]:
    """Yield the request for GPUs; the first model that has a type in Slurm is asked for."""
    if wanted.count:
        kind = gpu_type(wanted.models, types)
        yield f"--gres=gpu:{kind}:{wanted.count}" if kind else f"--gres=gpu:{wanted.count}"


def gpu_type(models: Sequence[str], types: Mapping[str, str]) -> str | None:
    """Return the type in Slurm of the first model that has one, or that may be one; None if there is none."""
    wanted = [model.casefold() for model in models]
    known = (name for model in wanted for part, name in types.items() if part in model)
    return next(known, next(filter(_TYPE.fullmatch, wanted), None))


def _time(left: timedelta | None, grace: timedelta) -> Iterator[str]:
    """Yield the time limit, in minutes, and the signal with which Slurm asks to save before its own limit."""
    yield f"--signal=B:TERM@{math.ceil(grace.total_seconds())}"
    if left is not None:
        yield f"--time={math.ceil((left + grace + MARGIN).total_seconds() / 60)}"
