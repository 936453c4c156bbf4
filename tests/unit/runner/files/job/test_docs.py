"""The pages about the job file: every field with its real default, every piece of YAML right."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import contract
from runner.files.field_checks import REFUSED_VARIABLES
from runner.files.job.load import parse_job
from runner.files.job.model import WORKLOADS
from runner.files.job.schema import job_schema
from scripts.docs import job_file

DOCS = Path(__file__).parents[5] / "docs"
TEXT = "".join(
    (DOCS / f"reference/{page}.md").read_text(encoding="utf-8") for page in ("jobfile", "jobfile-queue")
)
FIELDS = (DOCS / "reference/jobfile-fields.md").read_text(encoding="utf-8")
FIRST_JOB = (DOCS / "get-started/first-job.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_0-9.\[\]]+)` \| ([^|;]+?)(?:; [^|]+)? \|", re.MULTILINE)
ELSEWHERE = ("workload", "profile")
"""Sections whose fields have tests of their own."""


def fields(part: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every field of the schema."""
    for name, field in part["properties"].items():
        path = f"{prefix}{name}"
        sections = [] if name in ELSEWHERE else re.findall(r'"#/\$defs/(\w+)"', json.dumps(field))
        for section in sections:
            inner = f"{path}[]." if "items" in field else f"{path}."
            yield from fields(definitions[section], definitions, inner)
        yield path


def test_the_page_of_fields_has_every_field_of_the_schema() -> None:
    document = job_schema()
    told = {path for path, _ in ROW.findall(FIELDS)}
    assert [path for path in fields(document, document["$defs"]) if path not in told] == []


def test_the_page_lists_every_kind_of_workload() -> None:
    assert [kind for kind in WORKLOADS if f"| `{kind}` |" not in TEXT] == []


@pytest.mark.parametrize("kind", WORKLOADS)
def test_the_page_of_fields_leaves_out_no_field_of_a_kind(kind: str) -> None:
    plan = dict(zip(contract.KINDS, contract.PLANS, strict=True))[kind]
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", FIELDS, re.MULTILINE | re.DOTALL))
    common = dict(ROW.findall(sections["Every training"])) if kind != "program" else {}
    told = common | dict(ROW.findall(sections[kind]))
    wanted = {name: job_file.default(info) for name, info in plan.model_fields.items()}
    assert told == {f"workload.{name}": shown for name, shown in wanted.items() if name != "kind"}


def test_the_page_of_fields_has_every_switch() -> None:
    told = {path for path, _ in ROW.findall(FIELDS.split("\n## profile\n")[1])}
    assert told == {f"profile.{name}" for name in ("name", "extends", "environment", *contract.SWITCHES)}


def test_the_page_lists_the_refused_variables() -> None:
    table = TEXT.split("## environment")[1].split("## secrets")[0]
    names = re.findall(r"`([A-Z][A-Z_]+)(\*?)`", table)
    patterns = [pattern for pattern, _ in REFUSED_VARIABLES]
    assert len(names) > 30
    for name, star in names:
        assert any(pattern.fullmatch(name + ("X" if star else "")) for pattern in patterns), name


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT + FIRST_JOB, re.DOTALL))
def test_every_piece_of_yaml_on_the_pages_is_right(block: str) -> None:
    workload = "" if "workload:" in block else "workload: {kind: causal_lm, data: stdlib}\n"
    assert parse_job((workload + block).encode(), Path("job.yaml")).name in {"job", "rate-1"}
