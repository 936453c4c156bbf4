"""The job file of a job as it would be written by hand: what is not said is as by default."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from runner.base.errors import Refused
from runner.base.textfile import one_line
from runner.base.units import format_size
from runner.cli.run_file import yaml_text
from runner.files.job.model import JobFile

if TYPE_CHECKING:
    from runner.client.types import JobDetail

SIZES: Final = frozenset({"memory", "shm"})
FIRST: Final = ("name", "workload")
OF_MANY: Final = ("matrix", "sweep")


def job_file(job: JobDetail, heading: str = "") -> str:
    """Return the job file of a job alone, without what is as by default; a heading is put before its own.

    Raises:
        Refused: the job belongs to somebody else.
    """
    revision = job["revision"]
    if revision is None:
        raise Refused(f"job {job['id']}: belongs to {job['owner']}; only they and root may see its file")
    whole = JobFile.model_validate_json(json.dumps(revision["job"]))
    said = _said(whole, whole.model_dump(mode="json"))
    said["workload"] = {"kind": whole.workload.kind, **said["workload"]}
    said["name"] = whole.name
    others = (name for name in said if name not in {*FIRST, *OF_MANY})
    fields = {name: said[name] for name in (*FIRST, *others)}
    place = one_line(str(PurePosixPath(revision["path"]).parent))
    heading += f"The file of job {job['id']}; paths are relative to {place}"
    return yaml_text(_with_units(fields), heading).rstrip("\n")


def _said(model: BaseModel, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a model that are not as by default, at any depth."""
    found = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name in values and (field.is_required() or value != field.get_default(call_default_factory=True)):
            nested = isinstance(value, BaseModel) and isinstance(values[name], dict)
            found[name] = _said(value, values[name]) if nested else values[name]
    return found


def _with_units(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return JSON with sizes as people write them."""
    if isinstance(value, list):
        return [_with_units(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: format_size(each) if name in SIZES and isinstance(each, int) else _with_units(each)
        for name, each in value.items()
    }
