"""The facts of the policy language as rows of text, for ``runner policy facts`` and the reference page."""

from collections.abc import Iterator

from runner.core.policy.catalog import SECTIONS
from runner.core.policy.facts import DecisionPoint, Fact, FactKind


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the name, the values, the decision points, the meaning and the source of every fact."""
    for _, facts in SECTIONS:
        for fact in facts:
            yield fact.name, values(fact), decision_points(fact), fact.meaning, fact.source


def values(fact: Fact) -> str:
    """Return the values that a fact can have, in a few words."""
    if fact.name == "cause":
        return "a cause"
    if fact.values:
        return ", ".join(fact.values)
    kind = {FactKind.WHOLE: "whole", FactKind.NUMBER: "number", FactKind.WHOLES: "wholes"}.get(
        fact.kind, str(fact.kind)
    )
    bounds = ""
    if fact.least is not None:
        bounds = f" ≥ {fact.least:g}" if fact.most is None else f" {fact.least:g}-{fact.most:g}"
    return f"{kind}{bounds}{f' {fact.unit}' if fact.unit else ''}"


def decision_points(fact: Fact) -> str:
    """Return the decision points at which a fact is known, as letters: E (exit), W (watch), C (change)."""
    return "".join(str(moment)[0].upper() for moment in DecisionPoint if moment in fact.decision_points)
