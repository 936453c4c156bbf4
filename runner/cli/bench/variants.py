"""The compared variants: one job file per arm; the job files differ only in the profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs.contract import SWITCHES, WORKLOADS, Profile, kind_of, most_workers, profiles_dir
from runner.base.errors import UsageError
from runner.base.textfile import quoted, read_source, shown
from runner.files.job.load import as_written, parse_job
from runner.files.profiles.conflicts import find_switch_conflicts, find_unused_switches
from runner.files.profiles.load import AUTO, JOB_FILE, ProfileSetting, load_profile, profile_names
from runner.files.validation import parse_mapping, suggest_choice, suggest_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runner.files.profiles.load import Accelerator

NEEDS_GPU: Final[Mapping[str, Any]] = {
    "precision": "fp32",
    "tf32_matmul": False,
    "tf32_cudnn": False,
    "compile": "off",
}
"""Settings of the source projects' profiles on a CPU, which emulates the smaller formats.

They were written for GPUs; measured on a CPU, both profiles of a project are held equal in these switches.
"""

SOURCES: Final = ("-before", "-after")
"""End of the names of the source projects' profiles."""

COMMON: Final[Mapping[str, Any]] = {
    "resources": {"cpus": 2, "memory": "2GiB"},
    "checkpoint": {"every": "2m"},  # the same for all arms
}

SMALL: Final = {kind_of(plan): plan.benchmark for plan in WORKLOADS}
"""Small settings by workload, for a bare name: seconds to a minute or two on two cores."""


class BenchmarkJob(NamedTuple):
    """The base job of all arms."""

    name: str
    path: str  # as sent to the daemon; data paths are relative to it
    written: dict[str, Any]
    kind: str
    accelerator: Accelerator
    source: str = ""
    """The text of its file; empty for a built-in one."""


class ProfileVariant(NamedTuple):
    """One profile to be measured, as in a job file."""

    name: str
    profile: Mapping[str, Any]


def read_base_job(given: str, steps: int | None) -> BenchmarkJob:
    """Return the job of a file, or the small built-in job of a workload, with ``steps`` steps.

    Raises:
        UsageError: ``given`` is neither a file nor a workload, or the file is invalid.
    """
    source = b""
    if given in SMALL:
        path, written = Path(f"{given}.yaml"), {**COMMON, "workload": {"kind": given, **SMALL[given]}}
    elif "/" not in given and "." not in given and not Path(given).exists():
        hint = suggest_choice(given, tuple(SMALL))
        raise UsageError(f"{quoted(given)} is neither a job file nor a workload{hint}")
    else:
        path, source = Path(given), read_source(Path(given))
        written = written_fields(source, path)
    if steps is not None:
        _shorten(written["workload"], steps)
    job = parse_job(json.dumps(written).encode(), path)
    if section := next((name for name in ("matrix", "sweep", "schedule") if getattr(job, name)), None):
        raise UsageError(f"{path}: has a {section}; what is measured is one job, so leave it out")
    wants_gpu: Accelerator = "cuda" if job.resources.gpus else "cpu"
    accelerator = wants_gpu if job.accelerator == "auto" else job.accelerator
    text = source.decode("utf-8-sig")
    return BenchmarkJob(path.stem, str(path), written, job.workload.kind, accelerator, text)


def render_job_file(base: BenchmarkJob, arm: ProfileVariant) -> bytes:
    """Return the job file of one arm, as JSON.  The job has one attempt: a resumed job is not comparable."""
    retry = {**base.written.get("retry", {}), "max_attempts": 1}
    return json.dumps({**base.written, "profile": dict(arm.profile), "retry": retry}).encode()


def job_name(base: BenchmarkJob, arm: ProfileVariant) -> str:
    """Return a valid job name for one arm."""
    return re.sub(r"[^a-z0-9]+", "-", f"bench-{base.name}-{arm.name}".lower()).strip("-")[:60].strip("-")


def profile_variants(names: Sequence[str], accelerator: Accelerator = "cpu") -> list[ProfileVariant]:
    """Return one arm per profile.

    Raises:
        UsageError: a profile does not exist or is named twice.
    """
    known = (AUTO, *profile_names(profiles_dir()))
    for name in names:
        if name not in known:
            hint = suggest_profile(name, known)
            raise UsageError(f"there is no profile {quoted(name)}{hint}")
    if len(set(names)) < max(len(names), 2):
        raise UsageError(f"--profiles {','.join(names)}: name two different ones at least")
    return [ProfileVariant(name, _profile_of(name, accelerator)) for name in names]


def _profile_of(name: str, accelerator: Accelerator) -> dict[str, Any]:
    """Return a profile as a job file says it; a source project's is held to what a CPU can show."""
    if accelerator != "cpu" or not name.endswith(SOURCES):
        return {"extends": name}
    said = _said(name, accelerator)
    return {
        "extends": name,
        **{switch: value for switch, value in NEEDS_GPU.items() if said[switch].value != value},
    }


def ablation_variants(
    base: BenchmarkJob, slow: str, fast: str
) -> tuple[list[ProfileVariant], dict[str, str]]:
    """Return both profiles and, between them, ``fast`` with one switch at a time set as in ``slow``.

    The second value holds the omitted switches, each with the reason: the switch contradicts another
    one, or has no effect in this workload on this accelerator.
    """
    slow_said, fast_said = (_said(name, base.accelerator) for name in (slow, fast))
    found, skipped = [], {}
    changed = [each for each in SWITCHES if slow_said[each].value != fast_said[each].value]
    sides = {name: _profile_of(name, base.accelerator) for name in (slow, fast)}
    left_out = NEEDS_GPU.keys() if any(len(said) > 1 for said in sides.values()) else frozenset[str]()
    fast_said = {**fast_said, **_held(sides[fast])}
    for switch in changed:
        value = slow_said[switch].value
        if switch in left_out:
            skipped[switch] = "needs a GPU; held equal in both profiles"
        elif switch == "loader_workers" and min(value, fast_said[switch].value) >= _most_workers(base):
            skipped[switch] = f"at most {_most_workers(base)} for the cores of the job, in both profiles"
        elif why := unfit(switch, value, fast_said, base):
            skipped[switch] = why
        else:
            found.append(ProfileVariant(f"{fast}, {switch}: {shown(value)}", {**sides[fast], switch: value}))
    return [ProfileVariant(slow, sides[slow]), *found, ProfileVariant(fast, sides[fast])], skipped


def _most_workers(base: BenchmarkJob) -> int:
    """Return the loader processes that a named profile gives the job at most."""
    return most_workers(float(base.written.get("resources", {}).get("cpus", 1.0)))


def _held(profile: Mapping[str, Any]) -> dict[str, ProfileSetting]:
    """Return the switches that a profile of a job file changes."""
    changes = {switch: value for switch, value in profile.items() if switch != "extends"}
    return {switch: ProfileSetting(value, rank=JOB_FILE) for switch, value in changes.items()}


def unfit(switch: str, value: object, fast: Mapping[str, ProfileSetting], base: BenchmarkJob) -> str | None:
    """Return the reason why a switch cannot be changed by itself, or None if it can."""
    flipped = {**fast, switch: ProfileSetting(value, rank=JOB_FILE)}
    for clash in find_switch_conflicts(flipped, base.accelerator):
        return f"{clash.switch}: {clash.fact}"
    before, after = (
        find_unused_switches(_profile(said), base.kind, base.accelerator) for said in (fast, flipped)
    )
    return after[switch] if switch in after and switch in before else None


def _profile(said: Mapping[str, ProfileSetting]) -> Profile:
    return Profile.model_validate({"name": "", **{switch: one.value for switch, one in said.items()}})


def _said(name: str, accelerator: Accelerator) -> Mapping[str, ProfileSetting]:
    return load_profile(accelerator if name == AUTO else name, profiles_dir(), accelerator)


def written_fields(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the fields of a job file as they are written.

    Raises:
        FileError: it is invalid.
    """
    parse_job(raw, path)
    tree, _ = parse_mapping(raw, path)
    return as_written(tree)


def _shorten(workload: dict[str, Any], steps: int) -> None:
    """Set the number of steps, and the intervals for two evaluations and twenty log lines."""
    if workload.get("kind") == "program":
        raise UsageError("--steps: a program decides itself how many steps it takes; say it in its command")
    workload["steps"] = steps
    workload.pop("epochs", None)
    workload["log_every"] = max(1, steps // 20)
    workload["warmup_steps"] = min(workload.get("warmup_steps") or 0, steps)
    if workload.get("eval_every"):
        workload["eval_every"] = max(1, steps // 2)
