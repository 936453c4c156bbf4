"""Findings with a status and their figures, stored as JSON and rendered as Markdown.

A finding is created after its figures have been measured, so the report cannot show an unmeasured
figure.  What could not be measured is a finding with the status ``not run`` and the reason.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

Status: TypeAlias = Literal["passed", "failed", "measured", "not run"]

REHEARSED: Final = "rehearsal"

FILE: Final = "report.md"
"""The one file of a report."""

_BEGIN, _END = "<details><summary>all figures</summary>\n\n```json\n", "\n```\n\n</details>\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check or measurement."""

    name: str
    status: Status
    summary: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def checked(name: str, summary: str, /, *, good: bool, **figures: Any) -> Finding:
    """Return the finding of a check, which passes or fails."""
    return Finding(name, "passed" if good else "failed", summary, figures)


def measured(name: str, summary: str, /, **figures: Any) -> Finding:
    """Return the finding of a measurement without a target."""
    return Finding(name, "measured", summary, figures)


def not_run(name: str, why: str) -> Finding:
    """Return the finding for something that could not be measured."""
    return Finding(name, "not run", why)


@dataclass(frozen=True, slots=True)
class Part:
    """The findings of one part, and the machine they were measured on."""

    name: str
    title: str
    machine: Mapping[str, Any]
    rehearsal: bool
    began: str
    seconds: float
    findings: tuple[Finding, ...]


def write(directory: Path, parts: Sequence[Part]) -> Path:
    """Write the one file of a report, atomically: tables for people, then all figures; return its place."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = directory / FILE
    draft = kept.with_suffix(".part")
    data = json.dumps([asdict(part) for part in parts], indent=1)
    draft.write_text(f"{markdown(parts)}\n{_BEGIN}{data}{_END}")
    draft.replace(kept)
    return kept


def read(directory: Path, order: Sequence[str]) -> list[Part]:
    """Return the parts of the report in a directory, in the given order."""
    file = directory / FILE
    text = file.read_text() if file.exists() else ""
    data = text.partition(_BEGIN)[2].rpartition(_END)[0]
    parts = {kept["name"]: _part(kept) for kept in json.loads(data or "[]")}
    return [parts[name] for name in order if name in parts]


def _part(kept: dict[str, Any]) -> Part:
    findings = tuple(Finding(**finding) for finding in kept.pop("findings"))
    return Part(findings=findings, **kept)


def markdown(parts: Sequence[Part]) -> str:
    """Return the report as Markdown: one table per part."""
    if not parts:
        return "# GPU report\n\nNothing was measured.\n"
    text = [f"# GPU report: {_where(parts[0])}{_mark(parts[0])}", ""]
    if any(part.rehearsal for part in parts):
        text += ["**Rehearsal with tiny sizes: the figures say nothing about a GPU.**", ""]
    text += [*_overview(parts), ""]
    for part in parts:
        text += [f"## {part.name}: {part.title}{_mark(part)}", "", f"{_about(part)}", ""]
        text += ["| what | status | |", "|---|---|---|"]
        text += [
            f"| {_cell(finding.name)} | {_shown_status(part, finding)} | {_cell(finding.summary)} |"
            for finding in part.findings
        ]
        text.append("")
        for finding in part.findings:
            text += _table(finding, _mark(part))
    return "\n".join(text)


def _where(part: Part) -> str:
    return str(part.machine.get("device", "no device"))


def _about(part: Part) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in part.machine.items())
    return f"{part.began}, {part.seconds:.0f} s; {facts}."


def _overview(parts: Sequence[Part]) -> list[str]:
    kinds: tuple[Status, ...] = ("passed", "failed", "measured", "not run")
    rows = ["| part | passed | failed | measured | not run |", "|---|---|---|---|---|"]
    for part in parts:
        counts = (sum(finding.status == kind for finding in part.findings) for kind in kinds)
        rows.append(f"| {part.name}{_mark(part)} | {' | '.join(map(str, counts))} |")
    return rows


def _shown_status(part: Part, finding: Finding) -> str:
    shown = f"**{finding.status}**" if finding.status == "failed" else finding.status
    return f"{shown}{_mark(part)}"


def _mark(part: Part) -> str:
    """Return what marks a line of a rehearsal as one."""
    return f" ({REHEARSED})" if part.rehearsal else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _table(finding: Finding, mark: str) -> list[str]:
    """Return the table of a finding that has ``rows`` among its figures; each row has the mark."""
    rows: list[dict[str, Any]] = finding.figures.get("rows") or []
    if not rows:
        return []
    head = list(rows[0])
    text = [f"### {finding.name}{mark}", "", f"| {' | '.join(head)}{mark} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(_cell(_shown(row.get(key))) for key in head)}{mark} |" for row in rows]
    return [*text, ""]


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case _:
            return str(value)
