"""JSON Schema of the job file for editors.

It accepts every valid job file, and some that ``load`` refuses for reasons that a schema cannot express,
such as missing paths and contradictory fields.
"""

from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from jobs import contract
from runner.base.units import format_duration, format_size
from runner.files.job.model import Checkpoints, JobFile, Resources, Retry
from runner.files.job.parallel import ParallelFields
from runner.files.profiles.load import AUTO, profile_names

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a job file."""
    document = JobFile.model_json_schema()
    fields, definitions = document["properties"], document["$defs"]
    document["required"].remove("name")  # the file's name stands in
    for plan in contract.PLANS:
        definitions[plan.__name__]["required"] = ["kind", *definitions[plan.__name__].get("required", ())]
    names = (AUTO, *profile_names(contract.profiles_dir()))
    definitions["ProfileChoice"]["properties"]["extends"]["enum"] = list(names)
    _allow_text(fields["profile"], {"type": "string", "enum": list(names)}, AUTO)
    _allow_text(fields["image"], {"type": "string"}, "auto")
    definitions["Program"]["properties"]["code"]["anyOf"].insert(0, {"type": "string"})
    queueing, devices = definitions["QueueFields"]["properties"], definitions["DeviceRequest"]["properties"]
    queueing["after"]["items"] = {"anyOf": [{"type": "string"}, queueing["after"]["items"]]}
    _allow_one(devices["model"])
    for section in ("environment", "labels"):
        fields[section]["additionalProperties"] = {"type": ["string", "number"]}
    _write_defaults(fields, JobFile)
    for model in (Resources, ParallelFields, Checkpoints, Retry):
        _write_defaults(definitions[model.__name__]["properties"], model)
    return {"$schema": DIALECT, **document, "title": "Job file"}


def _allow_text(field: dict[str, Any], text: dict[str, Any], default: str) -> None:
    """Allow a text in place of a mapping."""
    reference = field.pop("$ref")
    field.update(anyOf=[text, {"$ref": reference}], default=default)


def _allow_one(field: dict[str, Any]) -> None:
    """Allow a single value in place of a list of one."""
    several = {name: field.pop(name) for name in ("type", "items", "maxItems")}
    field["anyOf"] = [several["items"], several]


def _write_defaults(fields: dict[str, Any], model: type[BaseModel]) -> None:
    """Write defaults as a user would; defaults of a section are in the section."""
    for name, info in model.model_fields.items():
        if isinstance(info.default, timedelta):
            fields[name]["default"] = format_duration(info.default)
        elif name in {"memory", "shm"} and info.default is not None:
            fields[name]["default"] = format_size(info.default)
        elif isinstance(info.default, contract.Tracking):
            fields[name]["default"] = list(info.default.trackers)
        elif "$ref" in fields[name]:
            fields[name].pop("default", None)
