"""Problems of a job file that involve several fields, or the profile and the accelerator."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final

from jobs import contract
from runner.base import yaml
from runner.base.textfile import Problem, quoted
from runner.base.units import format_duration, format_size
from runner.files.job.model import JobFile
from runner.files.job.parallel import find_parallel_problems
from runner.files.job.program_files import HOME, MOUNTS, checkpoint_mount, find_unmatchable
from runner.files.job.queue import FieldProblem, find_contradictions
from runner.files.job.sweep import find_sweep_contradictions
from runner.files.profiles.conflicts import SwitchConflict, find_switch_conflicts
from runner.files.profiles.load import Accelerator, load_choice
from runner.files.shell import find_dropped_arguments
from runner.files.validation import did_you_mean

REPORTED: Final = (
    "loss", "gradient_norm", "learning_rate", "items_per_s", "data_wait", "part_*", "memory_bytes",
    "resident_bytes", "cpus_used",
)  # fmt: skip
"""Metrics that every built-in workload reports between evaluations, and what is measured of it."""


def _secret_variables(job: JobFile) -> Iterator[Problem]:
    """Yield the variables that no secret gives a value, and those that have two."""
    for i, name in enumerate(job.secret_env):
        if name not in job.secrets:
            yield job.origin.problem(
                ("secret_env", i), f"{quoted(name)} is not a secret of this job; add secrets.{name}"
            )
        elif name in job.environment:
            fact = f"{quoted(name)} is in environment, too; remove it there"
            yield job.origin.problem(("secret_env", i), fact)


def find_conflicts(job: JobFile) -> Iterator[Problem]:
    """Yield the problems of fields that contradict each other."""
    problem = job.origin.problem
    resources, retry = job.resources, job.retry
    if job.accelerator == "cpu" and resources.gpus:
        yield problem(("resources", "gpus"), 'must be 0 if the accelerator is "cpu"')
    else:
        for path, fact in find_parallel_problems(job.parallel, job.workload, resources.gpus, resources.nodes):
            yield problem(path, fact)
    if job.accelerator in ("cuda", "rocm") and not resources.gpus:
        yield problem(
            ("accelerator",), f"{quoted(job.accelerator)} needs a GPU; set resources.gpus to at least 1"
        )
    if job.image.has_packages and not (
        isinstance(job.workload, contract.Program) or job.workload.takes_packages
    ):
        fact = f"packages are for programs; {job.workload.kind} brings all that it needs"
        yield problem(("image",), fact)
    if resources.shm is not None and resources.shm > resources.memory:
        limit = format_size(resources.memory)
        fact = f"{format_size(resources.shm)} is larger than resources.memory, {limit}, which includes it"
        yield problem(("resources", "shm"), f"{fact}; lower shm")
    if retry.backoff is not None and retry.backoff_max is not None and retry.backoff > retry.backoff_max:
        longest = format_duration(retry.backoff_max)
        fact = f"{format_duration(retry.backoff)} is longer than retry.backoff_max, {longest}"
        yield problem(("retry", "backoff"), f"{fact}; lower it or raise backoff_max")
    if job.checkpoint.every is None and job.checkpoint.every_steps is None:
        yield problem(("checkpoint",), "would never save; set every, every_steps or both")
    if job.progress.pattern is not None and not isinstance(job.workload, contract.Program):
        fact = f"is for kind: program; {job.workload.kind} reports its progress itself; remove it"
        yield problem(("progress", "pattern"), fact)
    if job.checkpoint.before_eval is not None and isinstance(job.workload, contract.Program):
        fact = "is for built-in workloads; a program decides itself when it saves; remove it"
        yield problem(("checkpoint", "before_eval"), fact)
    yield from _secret_variables(job)
    for path, fact in (*_own_checkpoints(job), *_own_path(job)):
        yield problem(path, fact)
    for path, fact in find_contradictions(
        gpus=resources.gpus,
        queueing=job.queue,
        devices=job.devices,
        matrix=job.matrix,
        schedule=job.schedule,
    ):
        yield problem(path, fact)
    for path, fact in (*_sweep_problems(job), *_unknown_metrics(job)):
        yield problem(path, fact)
    yield from _overlaps(job)


def _sweep_problems(job: JobFile) -> Iterator[FieldProblem]:
    """Yield the contradictions of a sweep, alone and with the training that its candidates do."""
    if job.sweep is None:
        return
    yield from find_sweep_contradictions(job.sweep)
    plan, every = job.workload, 1
    if not isinstance(plan, contract.Program) and _is_one_of(job.sweep.metric, (*plan.evaluates, "eval_*")):
        every = plan.eval_every or 0
    if every == 0:
        yield ("sweep", "metric"), "is of evaluations, and workload.eval_every is null: there are none"
    if job.sweep.stop is None:
        return
    if (rung := job.sweep.stop.rungs[0]) < every:
        yield ("sweep", "stop", "rungs"), f"{rung} is before the first evaluation, at step {every}"
    steps = job.workload.known_steps
    if not job.checkpoint.on_stop:
        yield ("sweep", "stop"), "pauses candidates, which save then; remove checkpoint.on_stop: false"
    if steps is not None and (rung := job.sweep.stop.rungs[-1]) >= steps:
        yield ("sweep", "stop", "rungs"), f"{rung} is not before the last step, {steps}; remove it"


def _unknown_metrics(job: JobFile) -> Iterator[FieldProblem]:
    """Yield the metrics that a built-in workload never reports."""
    plan = job.workload
    if isinstance(plan, contract.Program) or not plan.evaluates:
        return
    if job.sweep is not None:
        yield from _unknown(plan, job.sweep.metric, ("sweep", "metric"), REPORTED)
    for name, watching in (("early_stopping", plan.early_stopping), ("lr_plateau", plan.lr_plateau)):
        if watching is not None and watching.metric is not None:
            yield from _unknown(plan, watching.metric, ("workload", name, "metric"), ())


def _unknown(
    plan: contract.TrainingPlan, metric: str, path: tuple[str, ...], more: tuple[str, ...]
) -> Iterator[FieldProblem]:
    known = (*plan.evaluates, *more)
    if not _is_one_of(metric, known):
        hint = did_you_mean(metric, known) or f"; it reports {', '.join(known)}"
        yield path, f"{plan.kind} never reports {quoted(metric)}{hint}"


def _is_one_of(metric: str, names: tuple[str, ...]) -> bool:
    return any(fnmatchcase(metric, name) for name in names)


def _own_checkpoints(job: JobFile) -> Iterator[FieldProblem]:
    """Yield the contradictions of the fields about checkpoints that a program saves on its own."""
    plan, files = job.workload, job.checkpoint.files
    if files is None:
        if job.checkpoint.resume_args:
            yield ("checkpoint", "resume_args"), "needs checkpoint.files, which says what to resume from"
        return
    if (fact := find_unmatchable(files)) is not None:
        yield ("checkpoint", "files"), fact
    elif not isinstance(plan, contract.Program):
        yield ("checkpoint", "files"), f"is for kind: program; {plan.kind} saves by itself; remove it"
    elif job.checkpoint.resume_args and (dropped := find_dropped_arguments(plan.command)) is not None:
        yield ("checkpoint", "resume_args"), f"would reach no program: {dropped}"
    elif files.startswith(MOUNTS):
        mount = checkpoint_mount(job)
        if mount is None:
            yield ("checkpoint", "files"), f"is below no mount of this job: {quoted(files)}; add it to mounts"
        elif mount.read_only:
            fact = f"is below {mount.target}, which is read-only"
            yield ("checkpoint", "files"), f"{fact}; set read_only: false for that mount"
    elif not files.startswith(HOME) and (
        plan.code is None or plan.code.live or plan.code.mode == "read_only"
    ):
        fact = "is relative to a writable working directory, which this job has not"
        yield ("checkpoint", "files"), f"{fact}; set workload.code, or save below /job/home/"


def _own_path(job: JobFile) -> Iterator[FieldProblem]:
    if "PYTHONPATH" in job.environment and not isinstance(job.workload, contract.Program):
        yield (
            ("environment", "PYTHONPATH"),
            f"is for kind: program; {job.workload.kind} is not yours; remove it",
        )


def _overlaps(job: JobFile) -> Iterator[Problem]:
    targets = [(i, PurePosixPath(mount.target)) for i, mount in enumerate(job.mounts)]
    for (_, first), (i, second) in combinations(targets, 2):
        if first.is_relative_to(second) or second.is_relative_to(first):
            fact = f"{quoted(str(second))} and {quoted(str(first))} overlap; choose separate directories"
            yield job.origin.problem(("mounts", i, "target"), fact)


def find_unavoidable_profile_conflicts(job: JobFile) -> Iterator[Problem]:
    """Yield the conflicts of the profile that exist on every accelerator which the job could get."""
    found = [list(_clashes(job, each)) for each in _accelerators(job)]
    sides = [{(clash.switch, clash.other) for clash in each} for each in found]
    for clash in found[0]:
        if all((clash.switch, clash.other) in each for each in sides):
            yield job.origin.problem(("profile", clash.switch), clash.fact)


def _accelerators(job: JobFile) -> tuple[Accelerator, ...]:
    if job.accelerator != "auto":
        return (job.accelerator,)
    return ("cuda", "rocm") if job.resources.gpus else ("cpu",)


def find_profile_conflicts(job: JobFile, accelerator: Accelerator) -> Iterator[Problem]:
    """Yield the conflicts of the job's profile on an accelerator.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    for clash in _clashes(job, accelerator):
        yield job.origin.problem(("profile", clash.switch), clash.fact)


def _clashes(job: JobFile, accelerator: Accelerator) -> Iterator[SwitchConflict]:
    tree = job.origin.tree
    said = load_choice(job.profile, tree, contract.profiles_dir(), accelerator)
    decided_by = ("accelerator",) if job.accelerator != "auto" else ("resources", "gpus")
    node = yaml.find_node(tree, decided_by) if tree else None
    return find_switch_conflicts(said, accelerator, f" (line {node.at.line})" if node else "")
