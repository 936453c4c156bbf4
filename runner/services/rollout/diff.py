"""Comparing two revisions field by field.

The fields are resolved first: profiles, absolute paths, numbers of threads.  So two files that say the same
in different ways do not differ, and a profile file that an operator has edited does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from jobs.contract import Program, TrainingPlan, thread_count
from runner.core.policy.change_class import (
    FieldRule,
    JsonValue,
    RevisionChange,
    RevisionFields,
    classify_change,
    workload_rules,
)
from runner.core.policy.digest import compute_digest
from runner.files.package_lock import locked_versions
from runner.files.policy.job_policy import deserialize_policy
from runner.files.revision import CodeReference, DataReference, Revision

_ELSEWHERE = frozenset({"workload", "profile", "mounts", "network", "accelerator", "policy"})
"""Parts of the job file that are shown in another form."""


def compare_revisions(before: Revision, after: Revision, *, same_code: bool = False) -> RevisionChange:
    """Return the differences of two revisions, field by field.

    ``same_code``: their snapshots hold the same program.
    """
    here, there = fields(before), fields(after)
    if same_code and before.code is not None:
        there = replace(there, values={**there.values, "workload.code": _code_of(after, before.code)})
    if before.data and after.data and None in {before.data.digest, after.data.digest}:
        paths = ({"workload.data": side.data.path} for side in (before, after) if side.data)
        here, there = (
            replace(known, values={**known.values, **path})
            for known, path in zip((here, there), paths, strict=True)
        )
    if before.image and after.image:
        here, there = (
            replace(known, values={**known.values, "image.digest": side.image})
            for known, side in ((here, before), (there, after))
        )
    if _digest(before) == _digest(after):  # however the names of its files are spelt
        there = replace(there, values={**there.values, "policy": _policy(before)})
    return classify_change(here, there)


def fields(revision: Revision) -> RevisionFields:
    """Return everything that a revision says, dotted."""
    plan = revision.job.workload
    values = dict(_values(revision))
    return RevisionFields(
        values, plan.kind, dropout=getattr(plan, "dropout", 0) > 0, workload=own_rules(type(plan))
    )


def in_place_of(before: Revision, after: Revision) -> Revision:
    """Return a revision that keeps the place of another in its matrix or sweep: a job's own file lacks it."""
    job = after.job
    if before.sweep is not None and job.matrix is None and job.sweep is None:
        job = job.model_copy(update={"matrix": before.job.matrix, "sweep": before.job.sweep})
    return after.model_copy(update={"job": job, "sweep": before.sweep})


def own_rules(plan: type[TrainingPlan | Program]) -> Mapping[str, FieldRule]:
    """Return the effects of a kind of workload's fields on a checkpoint."""
    if issubclass(plan, Program):
        return {}  # those of a program are known without a plan
    own = plan.checkpoint_fields
    return workload_rules(data=own.data, shape=own.shape, trajectory=own.trajectory, reports=own.reports)


def _values(revision: Revision) -> Iterator[tuple[str, JsonValue]]:
    job = revision.job.model_dump(mode="json")
    for name, value in job.items():
        if name not in _ELSEWHERE:
            yield from _flat(name, value)
    if revision.lock is not None:
        for name, version in locked_versions(revision.lock).items():
            yield f"image.packages.{name}", version
    yield "accelerator", revision.accelerator
    yield "network", revision.network
    yield "policy", _policy(revision)
    if mounts := [
        f"{revision.base / one.source}:{one.target}:{one.read_only}" for one in revision.job.mounts
    ]:
        yield "mounts", [*mounts]
    yield from _workload(revision)
    yield from _profile(revision)


def _policy(revision: Revision) -> JsonValue:
    """Return the identity of a policy: its name, and its digest as ``runner policy check`` prints it."""
    return f"{revision.job.policy} ({_digest(revision)})"


def _digest(revision: Revision) -> str:
    return compute_digest(deserialize_policy(revision.policy))


def _flat(name: str, value: Any) -> Iterator[tuple[str, JsonValue]]:  # noqa: ANN401  (JSON)
    """Yield the leaves of a mapping; anything else is a leaf itself."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, part in value.items():
        yield f"{name}.{key}", part


def _workload(revision: Revision) -> Iterator[tuple[str, JsonValue]]:
    plan = revision.job.workload
    for name, value in plan.model_dump(mode="json").items():
        if name == "data" and revision.data is not None:
            yield "workload.data", _data_of(revision.data)
        elif name == "init_from" and revision.init is not None:
            yield "workload.init_from", revision.init.text
        elif name in revision.inputs:
            yield f"workload.{name}", revision.inputs[name].path
        elif name == "code" and isinstance(plan, Program) and plan.code is not None:
            yield "workload.code", _code_of(revision, revision.code)
        else:
            yield f"workload.{name}", value


def _data_of(data: DataReference) -> str:
    """Return the place of data, with the digest of their content if it is known."""
    return data.path if data.digest is None else f"{data.path} ({data.digest[:12]})"


def _code_of(revision: Revision, kept: CodeReference | None) -> str:
    """Return the code that a program runs: a directory as it was, by the snapshot, or as it is then."""
    place = str(revision.code_directory())
    return place if kept is None else f"{place} ({kept.snapshot[:12]})"


def _profile(revision: Revision) -> Iterator[tuple[str, JsonValue]]:
    """Yield the switches as they come out, the number of threads counted."""
    profile = revision.profile()
    threads = thread_count(profile, revision.job.resources.cpus, revision.parallel().cpu_shares)
    for name, value in profile.model_copy(update={"threads": threads}).model_dump(mode="json").items():
        if name == "environment":
            yield from _flat("profile.environment", value)
        elif name != "name":
            yield f"profile.{name}", value
