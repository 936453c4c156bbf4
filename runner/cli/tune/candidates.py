"""The settings that ``runner tune`` tries: switches of the profile, variables and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs.contract import most_workers, profiles_dir, thread_count
from runner.base.errors import UsageError
from runner.base.textfile import FileError, one_line
from runner.cli.bench.variants import unfit
from runner.cli.tune.search import Variation
from runner.files.job.load import parse_job
from runner.files.job.model import resolve_profile
from runner.files.profiles.conflicts import OWN_PROGRAM
from runner.files.profiles.load import AUTO, load_choice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from runner.cli.bench.variants import BenchmarkJob
    from runner.cli.tune.search import Variations

TRIED: Final[Mapping[str, tuple[Any, ...]]] = {
    "conversion": ("once",),
    "shared_targets": (True,),
    "encode_once": (True,),
    "graph_cache": ("memory",),
    "last_position_only": (True,),
    "attention": ("fused",),
    "transfer": ("needed",),
    "clone_batches": (False,),
    "anomaly_detection": (False,),
    "launch_blocking": (False,),
    "activation_checkpointing": (False,),
    "memory_log": ("off",),
    "memory_cleanup_every": (None,),
    "threads": (),  # by the cores of the job
    "loader_workers": (),
    "loader_prefetch": (8,),
    "placement": ("device", "pinned"),
    "non_blocking": (True,),
    "allocator": ("expandable_segments",),
    "optimizer": ("fused", "foreach"),
    "host_checks_every": (10,),
    "micro_batch": (None,),
    "compile": ("default",),  # last: each attempt compiles again
}
"""Values by switch that keep the arithmetic, except for the order of sums; the likely ones first."""

NUMERICS: Final[Mapping[str, tuple[Any, ...]]] = {
    "precision": ("bf16", "tf32"),
    "tf32_matmul": (True,),
    "tf32_cudnn": (True,),
    "deterministic": (False,),
    "cudnn_benchmark": (True,),
}
"""Values that compute with fewer bits, or not the same bits every time."""

NEEDS_GPU: Final = frozenset(
    {
        *("placement", "non_blocking", "allocator", "launch_blocking", "memory_cleanup_every"),
        *("precision", "tf32_matmul", "tf32_cudnn", "cudnn_benchmark"),
    }
)
"""Switches that bring nothing on a CPU: there is no device, or the CPU emulates the format."""


GPU: Final = "needs a GPU"


class Offered(NamedTuple):
    """The candidates, and the switches that are left out, each with the reason."""

    candidates: list[Variation]
    left_out: dict[str, str]


def offered(base: BenchmarkJob, applied: Collection[str], *, numerics: bool) -> Offered:
    """Return the switches that are tried.

    ``applied`` are those that a program of the user's own was seen to apply.
    """
    job = parse_job(json.dumps(base.written).encode(), Path(base.path))
    said = load_choice(job.profile, None, profiles_dir(), base.accelerator)
    profile, cores, found = resolve_profile(job, base.accelerator), job.resources.cpus, Offered([], {})
    for switch, values in {**TRIED, **NUMERICS}.items():
        now = thread_count(profile, cores) if switch == "threads" else getattr(profile, switch)
        for value in (each for each in [*values, *_by_cores(switch, cores)] if each != now):
            why = unfit(switch, value, said, base)
            why = None if why == OWN_PROGRAM and switch in applied else why
            if base.accelerator == "cpu" and switch in NEEDS_GPU and why != OWN_PROGRAM:
                why = GPU
            if why is None and switch in NUMERICS and not numerics:
                why = "computes with other numbers; --numerics tries it"
            if why is None:
                found.candidates.append(Variation("profile", switch, value, now))
            else:
                found.left_out.setdefault(switch, why)
    return found


def _by_cores(switch: str, cores: float) -> list[int]:
    """Return the numbers of threads or of loader processes that a job's cores can run."""
    most = most_workers(cores)
    some = sorted({1, max(most // 2, 1), most}, reverse=True)
    return {"threads": some, "loader_workers": [*some, 0]}.get(switch, [])


def asked(base: BenchmarkJob, variables: Sequence[str], arguments: Sequence[str]) -> list[Variation]:
    """Return the user's choice: ``NAME=V1,V2`` of variables, ``--option=V1,V2`` of arguments.

    Raises:
        UsageError: one has not this form or cannot be set, or a built-in workload is given an argument.
    """
    if arguments and base.kind != "program":
        raise UsageError(f"--argument: {base.kind} is a built-in workload and has no command")
    found: list[Variation] = []
    for place, texts in (("environment", variables), ("command", arguments)):
        for text in texts:
            name, equals, values = text.partition("=")
            option = "variable" if place == "environment" else "argument"
            if not equals or not name.strip("-") or not values:
                raise UsageError(f"--{option} {one_line(text)}: write a name and its values: NAME=1,2")
            now = _now(base, place, name)
            new = [Variation(place, name, value, now) for value in values.split(",") if value != now]
            _check(base, new, option)
            found += new
    return found


def _check(base: BenchmarkJob, candidates: Sequence[Variation], option: str) -> None:
    """Check that a job file may have these settings, before anything is measured."""
    for candidate in candidates:
        try:
            parse_job(json.dumps(job_fields(base, (candidate,))).encode(), Path(base.path))
        except FileError as error:
            raise UsageError(f"--{option} {candidate.name}: {error.problems[0].fact}") from error


def _now(base: BenchmarkJob, place: str, name: str) -> str | None:
    """Return the present value of a variable or an argument; None: it has none."""
    if place == "environment":
        profile = base.written.get("profile")
        lower = profile.get("environment", {}) if isinstance(profile, dict) else {}
        value = {**lower, **base.written.get("environment", {})}.get(name)
        return None if value is None else str(value)
    words: Sequence[str] = base.written["workload"]["command"]
    for index, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and index + 1 < len(words):
            return words[index + 1]
    return None


def job_fields(base: BenchmarkJob, settings: Variations) -> dict[str, Any]:
    """Return the fields of the job file with some settings, the profile last."""
    fields = {name: value for name, value in base.written.items() if name != "profile"}
    profile = base.written.get("profile", AUTO)
    profile = dict(profile) if isinstance(profile, dict) else {"extends": profile}
    for place, name, value, _ in settings:
        if place == "command":
            fields["workload"] = {
                **fields["workload"],
                "command": _with_argument(fields["workload"]["command"], name, value),
            }
        elif place == "profile":
            profile[name] = value
        elif name in fields.get("environment", {}):  # the job's own wins over the profile's
            fields["environment"] = {**fields["environment"], name: value}
        else:
            profile["environment"] = {**profile.get("environment", {}), name: value}
    return {**fields, "profile": profile}


def _with_argument(words: Sequence[str], name: str, value: str) -> list[str]:
    """Return a command with one value of an argument, in place of its present one or at the end."""
    for index, word in enumerate(words):
        if word.startswith(f"{name}="):
            return [*words[:index], f"{name}={value}", *words[index + 1 :]]
        if word == name:
            return [*words[: index + 1], value, *words[index + 2 :]]
    return [*words, f"{name}={value}"]
