"""Checks of a job file's requests to Slurm, by the operator's rules and by Slurm itself."""

from collections.abc import Iterator

from jobs.contract import Program
from runner.agent.ports import BatchCheck
from runner.base.readable import readable_size
from runner.base.textfile import one_line, quoted
from runner.base.yaml import PathPart
from runner.core.ports.executor import BatchRequest, GpuRequest, Limits
from runner.core.ports.users import Owner
from runner.files.job.model import JobFile
from runner.files.job.slurm import SlurmFields, batch_options
from runner.files.settings.slurm import SlurmSettings

FieldProblem = tuple[tuple[PathPart, ...], str]


def find_slurm_problems(
    job: JobFile, settings: SlurmSettings, owner: Owner, check: BatchCheck | None
) -> Iterator[FieldProblem]:
    """Yield the problems of a job by the operator's settings or Slurm; without Slurm ``check`` is None."""
    if job.executor is not None:
        yield from _nowhere(job, settings, in_slurm=check is not None)
    if job.executor == ("local",) and check is not None:
        return
    if check is None:
        if job.resources.nodes > 1:
            fact = "nodes need Slurm, and jobs do not run in Slurm here (executor in the settings)"
            yield ("resources", "nodes"), f"{job.resources.nodes} {fact}; leave it out"
        if job.slurm != SlurmFields():
            yield ("slurm",), "jobs do not run in Slurm here (executor in the settings); leave it out"
        return
    refused = (
        *refused_fields(job.slurm, settings),
        *_beyond_containers(job, settings),
        *_beyond_nodes(job, settings),
    )
    yield from refused
    if refused:
        return
    resources = job.resources
    asked = BatchRequest(
        Limits(resources.cpus, resources.memory),
        GpuRequest(resources.gpus, job.devices.model),
        batch_options(job.slurm),
        resources.time_limit,
        job.stop_grace,
        resources.nodes,
        job.priority,
        job.queue.priority_class,
    )
    problem = check.problem(asked, owner)
    if problem is not None:
        yield tuple(problem[0].split(".")), problem[1]


def _nowhere(job: JobFile, settings: SlurmSettings, *, in_slurm: bool) -> Iterator[FieldProblem]:
    """Yield that a job names no place that this daemon has, or could not run there."""
    places, room, wants = job.executor or (), settings.local, job.resources
    if not in_slurm:
        if "local" not in places:
            fact = "jobs do not run in Slurm here (executor in the settings)"
            yield ("executor",), f"{fact}; leave it out, or add local"
        return
    if "slurm" in places:
        return
    if room is None:
        yield ("executor",), "jobs run in Slurm alone here (slurm.local in the settings); add slurm"
    elif wants.gpus or wants.nodes > 1 or wants.cpus > room.cpus or wants.memory > room.memory_bytes:
        there = f"{room.cpus:g} CPUs and {readable_size(room.memory_bytes)}"
        yield ("executor",), f"this machine offers {there}, no GPUs and one node; add slurm"


def _beyond_nodes(job: JobFile, settings: SlurmSettings) -> Iterator[FieldProblem]:
    """Yield the requests that no attempt on a node can have."""
    if isinstance(job.workload, Program) and job.workload.terminal:
        fact = "the terminal of a job on a node of Slurm cannot be reached (runner shell)"
        here = "" if settings.local is None else ", or name the daemon's machine: executor: [local]"
        yield ("workload", "terminal"), f"{fact}; leave it out, or type: srun --pty bash{here}"


def _beyond_containers(job: JobFile, settings: SlurmSettings) -> Iterator[FieldProblem]:
    """Yield the requests that containers on nodes do not have."""
    if settings.containers == "none":
        return
    if job.resources.nodes > 1 and settings.nodes_network == "none":
        fact = "containers on several nodes need the network of their nodes, which is not allowed here"
        yield ("resources", "nodes"), f"{fact}; ask the operator for slurm.nodes_network: host"
    if job.network == "outbound" and settings.nodes_network == "none":
        fact = "outbound: containers have no network on Slurm's nodes"
        yield ("network",), f"{fact}; leave it out, or ask the operator for slurm.nodes_network: host"


def refused_fields(asked: SlurmFields, settings: SlurmSettings) -> Iterator[FieldProblem]:
    """Yield the fields that the operator does not allow, each with the fact."""
    for field, value in asked.named:
        allowed = settings.allowed(field)
        if allowed is not None and value not in allowed and not set(value.split(",")) <= allowed:
            there = one_line(", ".join(sorted(allowed))) or "none"
            fact = f"{quoted(value)} is not offered here; there is {there}; ask the operator"
            yield ("slurm", field), fact
    for number, option in enumerate(asked.extra):
        name = option.partition("=")[0].removeprefix("--")
        if name not in settings.extra:
            there = one_line(", ".join(f"--{each}" for each in sorted(settings.extra))) or "no option"
            fact = f"--{name} is not allowed here; {there} is; ask the operator (slurm.extra)"
            yield ("slurm", "extra", number), fact
