"""The generated part of ``docs/reference/jobfile-fields.md``: all fields of workloads and of the profile.

The models are the only place where a field is described.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jobs import contract
from runner.base.units import format_duration
from runner.files import validation
from runner.files.profiles.load import ProfileChoice

ADAPTIVE: Final[Mapping[str, type[BaseModel]]] = {
    "early_stopping": contract.EarlyStopping,
    "lr_plateau": contract.Plateau,
    "swa": contract.WeightAveraging,
}
"""Fields of every training that are mappings."""

_DEFAULTS: Final = {
    "profile.name": "made from the changes",
    "profile.stream_buffer_memory": "`256MiB`",
    "workload.kind": "required",
}
_FORMS: Final = {
    "profile.stream_buffer_memory": "a size of at least `1MiB`",
    "workload.code": "a directory, a mapping with the fields below, or null",
}


def reference() -> str:
    """Return a table for each kind of workload, and one for the profile."""
    kinds = zip(contract.KINDS, contract.PLANS, strict=True)
    sections = [
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
    trains = issubclass(plan, contract.TrainingPlan)
    fields = plan.model_fields.items()
    return {name: info for name, info in fields if not trains or common.get(name) != default(info)}


def rows(fields: Mapping[str, FieldInfo], section: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the path, the default, the form and the meaning of each field, the required ones first."""
    for name, info in sorted(
        fields.items(), key=lambda field: (field[0] != "kind", not field[1].is_required())
    ):
        path = f"{section}.{name}"
        form = f"`{info.default}`" if name == "kind" else _FORMS.get(path) or validation.describe_field(info)
        meaning = info.description or "Which workload this is."
        yield path, _DEFAULTS.get(path) or default(info), form, meaning


def default(info: FieldInfo) -> str:
    """Return the default of a field as a page shows it."""
    if info.is_required():
        return "required"
    value = info.default
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _section(title: str, model: type[BaseModel], section: str, fields: Mapping[str, FieldInfo]) -> str:
    introduction = " ".join((model.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
    table = ["| " + " | ".join((f"`{path}`", *cells)) + " |" for path, *cells in rows(fields, section)]
    head = ["| field | default | is | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", introduction, "", *head, *table, ""])
