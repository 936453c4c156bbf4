"""The reference of the policy language, made by ``python -m runner.files.policy.reference docs/policy.md``.

What stands above the marker is written by hand and kept; what stands below it is made here.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from runner.core.policy.catalog import SECTIONS
from runner.core.policy.facts import DecisionPoint, Fact, Kind

MARKER: Final = "<!-- made by python -m runner.files.policy.reference: do not edit below -->"


def reference() -> str:
    """Return everything below the marker: the facts in one table, section by section."""
    head = "| fact | values | at | meaning | from |\n|---|---|---|---|---|\n"
    sections = "".join(f"| **{title}** | | | | |\n{_rows(facts)}" for title, facts in SECTIONS)
    return f"{MARKER}\n\n## Facts\n\n{_LEGEND}\n{head}{sections}"


_LEGEND: Final = (
    "Known at: E the end of an attempt, W while it runs, C when a change is offered. *Hint*: the container "
    "says so; *derived*: nobody gathers it.\n"
)


def renewed(page: str) -> str:
    """Return ``page`` with everything below its marker made anew."""
    by_hand, _, _ = page.partition(MARKER)
    return by_hand + reference()


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (name, values, when it is known, meaning, source) of every fact."""
    for _, facts in SECTIONS:
        for fact in facts:
            yield fact.name, values(fact), moments(fact), fact.meaning, fact.source


def values(fact: Fact) -> str:
    """Return what a fact can be, in a few words."""
    if fact.name == "cause":
        return "a cause"
    if fact.values:
        return ", ".join(fact.values)
    kind = {Kind.WHOLE: "whole", Kind.NUMBER: "number", Kind.WHOLES: "wholes"}.get(fact.kind, str(fact.kind))
    bounds = ""
    if fact.least is not None:
        bounds = f" ≥ {fact.least:g}" if fact.most is None else f" {fact.least:g}-{fact.most:g}"
    return f"{kind}{bounds}{f' {fact.unit}' if fact.unit else ''}"


def moments(fact: Fact) -> str:
    """Return when a fact is known, as letters."""
    return "".join(str(moment)[0].upper() for moment in DecisionPoint if moment in fact.moments)


def _rows(facts: tuple[Fact, ...]) -> str:
    return "".join(_row(fact) for fact in facts)


def _row(fact: Fact) -> str:
    mark = " *(hint)*" if fact.hint else " *(derived)*" if fact.derived else ""
    cells = (f"`{fact.name}`", values(fact), moments(fact), fact.meaning, f"{fact.source}{mark}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def main(path: Path) -> None:
    """Renew one page."""
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
