"""Counts of ended attempts and of policy decisions since the daemon started, for ``/metrics``."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from runner.core.ports.store import JobStore
from runner.files.policy.load import PolicySource, load_named_policy, plugin_policies

MAX_ROWS: Final = 1000
"""Rows that are read from the store at a time."""

OTHER_RULE: Final = "other"
"""Counts the rules that users have written; their names could be any number."""


@dataclass(slots=True)
class OutcomeCounts:
    """Counts of ended attempts and of decisions of rules since the first ``update``."""

    ended: Counter[str] = field(default_factory=Counter)  # attempts by cause
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)  # by moment and rule
    _event: int | None = None  # the last that is counted
    _decision: int | None = None

    def update(self, store: JobStore) -> None:
        """Count what the store has received since the last call; the first call counts nothing."""
        if self._event is None or self._decision is None:
            self._event, self._decision = store.last_seq(), store.last_decision()
        while ends := store.attempt_ends(self._event, MAX_ROWS):
            self._event = ends[-1].seq
            self.ended.update(str(row.cause) for row in ends if row.kind == "exited")
            self.ended.update("launch_failed" for row in ends if row.kind == "launch_failed")
        while uses := store.rule_uses(self._decision, MAX_ROWS):
            self._decision = uses[-1].seq
            self.decisions.update((row.moment, _rule_label(row.rule)) for row in uses)


def _rule_label(name: str) -> str:
    """Return the label of a rule: its name if it ships with the runner."""
    if not name:
        return "none"
    return name if name in _shipped_rules() else OTHER_RULE


@cache
def _shipped_rules() -> frozenset[str]:
    policies = [
        load_named_policy(name) for name in set(PolicySource().names()) - plugin_policies().found.keys()
    ]
    return frozenset(
        rule.name for policy in policies for rule in (*policy.on_exit, *policy.on_watch, *policy.on_change)
    )
