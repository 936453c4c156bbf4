"""The generated part of ``docs/reference/policy-facts.md``: every fact that a rule can test."""

from typing import Final

from runner.core.policy.catalog import SECTIONS
from runner.core.policy.facts import Fact
from runner.files.policy.fact_table import decision_points, values

_LEGEND: Final = (
    "Known at: E the end of an attempt, W while it runs, C when a change is offered. *Hint*: reported by the "
    "container; *derived*: computed from other facts.\n"
)


def reference() -> str:
    """Return the facts in one table, section by section."""
    head = "| fact | values | at | meaning | from |\n|---|---|---|---|---|\n"
    sections = "".join(f"| **{title}** | | | | |\n{''.join(map(_row, facts))}" for title, facts in SECTIONS)
    return f"## Facts\n\n{_LEGEND}\n{head}{sections}"


def _row(fact: Fact) -> str:
    mark = " *(hint)*" if fact.hint else " *(derived)*" if fact.derived else ""
    cells = (f"`{fact.name}`", values(fact), decision_points(fact), fact.meaning, f"{fact.source}{mark}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
