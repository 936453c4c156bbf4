"""The generated part of ``docs/reference/jobfile-fields.md``: all fields of a job file.

The models are the only place where a field is described.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobs import contract
from runner.base.units import format_duration, format_size
from runner.files import validation
from runner.files.job.image import ImageChoice
from runner.files.job.model import Checkpoints, JobFile, MountEntry, Resources, Retry
from runner.files.job.parallel import ParallelFields
from runner.files.job.progress import LogProgress
from runner.files.job.queue import DeviceRequest, JobDependency, Matrix, QueueFields, Schedule
from runner.files.job.slurm import SlurmFields
from runner.files.job.sweep import Halving, Range, Sweep
from runner.files.profiles.load import ProfileChoice

ADAPTIVE: Final[Mapping[str, type[BaseModel]]] = {
    "early_stopping": contract.EarlyStopping,
    "lr_plateau": contract.Plateau,
    "swa": contract.WeightAveraging,
}
"""Fields of every training that are mappings."""

SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "resources": Resources,
    "parallel": ParallelFields,
    "image": ImageChoice,
    "mounts[]": MountEntry,
    "checkpoint": Checkpoints,
    "progress": LogProgress,
    "retry": Retry,
    "queue": QueueFields,
    "queue.after[]": JobDependency,
    "devices": DeviceRequest,
    "matrix": Matrix,
    "sweep": Sweep,
    "sweep.parameters": Range,
    "sweep.stop": Halving,
    "schedule": Schedule,
    "slurm": SlurmFields,
}
"""The sections of a job file beside its workload and its profile."""

_DEFAULTS: Final = {
    "name": "the file's name",
    "profile.name": "made from the changes",
}
_FORMS: Final = {
    "checkpoint.every": "duration",
    "profile.stream_buffer_memory": "≥ 1MiB",
    "image.requirements": "text or list",
    "executor": "list of `local`, `slurm`",
    "stop_grace": "1s-1h",
    "workload.code": "text or mapping",
}
_SIZES: Final = {"memory", "shm", "stream_buffer_memory"}
_SHORT: Final = (
    (r", or null$", ""),
    (r"\ba whole number\b", "integer"),
    (r"\ba (?=number|list|mapping)", ""),
    (r"one of ", ""),
    (r" from (\S+) to (\S+)", r" \1-\2"),
    (r" and of| and", ","),
    (r"(?: of)? at least ", " ≥ "),
    (r"(?: of)? at most ", " ≤ "),
    (r" greater than ", " > "),
    (r" less than ", " < "),
    (r'(?: or )?"([^"]+)"', r"`\1`"),
    (r"(?<=`),? *(?=`)|(?<=\d)(?=`)", ", "),
)
"""Patterns of a requirement as messages describe it, and their short forms in a table."""


def reference() -> str:
    """Return the tables of the job, of its sections, of each kind of workload, and of the profile."""
    kinds = zip(contract.KINDS, contract.PLANS, strict=True)
    sections = [
        _section("The job", JobFile, "", JobFile.model_fields),
        *(_section(path.rstrip("[]"), model, path, model.model_fields) for path, model in SECTIONS.items()),
        _section("Every training", contract.TrainingPlan, "workload", contract.TrainingPlan.model_fields),
        *(
            _section(f"workload.{name}", model, f"workload.{name}", model.model_fields)
            for name, model in ADAPTIVE.items()
        ),
        *(_section(kind, plan, "workload", own_fields(plan)) for kind, plan in kinds),
        _section("workload.lora", contract.Lora, "workload.lora", contract.Lora.model_fields),
        _section("workload.code", contract.ProgramCode, "workload.code", contract.ProgramCode.model_fields),
        _section("profile", ProfileChoice, "profile", ProfileChoice.model_fields),
    ]
    return "\n".join(sections)


def own_fields(plan: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """Return the fields of a plan that differ from those of every training."""
    common = {name: default(info) for name, info in contract.TrainingPlan.model_fields.items()}
    common["data"] = ""  # each workload describes its own data
    common["kind"] = default(plan.model_fields["kind"])  # the heading says it
    if not issubclass(plan, contract.TrainingPlan):
        common = {"kind": common["kind"]}
    return {name: info for name, info in plan.model_fields.items() if common.get(name) != default(info)}


def rows(fields: Mapping[str, FieldInfo], section: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default with other values, and meaning of each field, the required ones first."""
    for name, info in sorted(fields.items(), key=lambda field: not field[1].is_required()):
        path = f"{section}.{name}".removeprefix(".")
        shown = _DEFAULTS.get(path) or default(info, size=name in _SIZES)
        form = _FORMS.get(path) or _form(name, info)
        others = form.replace(f"{shown}, ", "").removesuffix(f", {shown}")
        yield path, "; ".join(filter(None, (shown, others))), info.description or ""


def _form(name: str, info: FieldInfo) -> str:
    """Return the short form of what a field takes; nothing if its default shows that."""
    kinds = {info.annotation, *get_args(info.annotation), *map(_bare, get_args(info.annotation))}
    shown = not info.is_required() and info.default is not None
    if shown and (isinstance(info.default, tuple | dict | BaseModel) or info.annotation in {bool, str}):
        return ""
    for kind, form in ((timedelta, "duration"), (datetime, "time")):
        if kind in kinds:
            return "" if shown else form
    if name in _SIZES:
        return "" if shown else "size"
    form = validation.describe_field(info)
    for pattern, short in _SHORT:
        form = re.sub(pattern, short, form)
    return form.removeprefix("integer ").removeprefix("number ") if shown else form


def _bare(annotation: object) -> object:
    """Return an annotation without its metadata."""
    return next(iter(get_args(annotation)), annotation)


def default(info: FieldInfo, *, size: bool = False) -> str:
    """Return the default of a field as a page shows it."""
    if info.is_required():
        return "required"
    value = info.default
    if isinstance(value, contract.Tracking):
        return "`[]`"
    if isinstance(value, BaseModel):
        return "below"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    if size and value is not None:
        return f"`{format_size(value)}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _section(title: str, model: type[BaseModel], section: str, fields: Mapping[str, FieldInfo]) -> str:
    introduction = " ".join((model.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
    table = ["| " + " | ".join((f"`{path}`", *cells)) + " |" for path, *cells in rows(fields, section)]
    head = ["| field | default; values | meaning |", "|---|---|---|"]
    return "\n".join([f"## {title}", "", introduction, "", *head, *table, ""])
