"""The table of all facts.  ``runner policy facts`` and docs/reference/policy-facts.md are made from it.

Words that a container says are marked as hints: they decide about its own job and nothing else.
"""

from collections.abc import Mapping
from typing import Final

from runner.core.policy.catalog_attempt import CHECKPOINT_FACTS, EXIT_FACTS, PROGRESS_FACTS
from runner.core.policy.catalog_environment import (
    ATTEMPT_FACTS,
    CHANGE_FACTS,
    DEVICE_FACTS,
    EFFECTIVE_FACTS,
    QUEUE_FACTS,
    REQUEST_FACTS,
)
from runner.core.policy.facts import DecisionPoint, Fact, FactValue

SECTIONS: Final = (
    ("The end", EXIT_FACTS),
    ("Progress", PROGRESS_FACTS),
    ("Checkpoints", CHECKPOINT_FACTS),
    ("Devices", DEVICE_FACTS),
    ("What took effect", EFFECTIVE_FACTS),
    ("Attempts", ATTEMPT_FACTS),
    ("Requests and limits", REQUEST_FACTS),
    ("The queue", QUEUE_FACTS),
    ("A change", CHANGE_FACTS),
)

FACTS: Final[Mapping[str, Fact]] = {fact.name: fact for _, facts in SECTIONS for fact in facts}


def facts_at(moment: DecisionPoint) -> dict[str, Fact]:
    """Return the facts that a rule of this moment may ask about."""
    return {name: fact for name, fact in FACTS.items() if moment in fact.decision_points}


def select_facts(given: Mapping[str, object], moment: DecisionPoint) -> dict[str, FactValue]:
    """Return the known facts of one moment, given those that readers of several moments have found.

    Raises:
        ValueError: a name that does not exist, or a value that the runner itself got wrong.
    """
    others = FACTS.keys() - facts_at(moment).keys()
    return validate_facts({name: value for name, value in given.items() if name not in others}, moment)


def validate_facts(given: Mapping[str, object], moment: DecisionPoint) -> dict[str, FactValue]:
    """Return the facts that are known; None stands for unknown, and so does a hint that makes no sense.

    Raises:
        ValueError: a name that does not exist at this moment, or a value that the runner itself got wrong.
    """
    facts: dict[str, FactValue] = {}
    for name, value in given.items():
        fact = FACTS.get(name)
        if fact is None or moment not in fact.decision_points:
            raise ValueError(f"there is no fact {name!r} on {moment}")
        kept = None if value is None else fact.read(value)
        if kept is not None:
            facts[name] = kept
        elif value is not None and not fact.hint:
            raise ValueError(f"{name} cannot be {value!r}: it is a {fact.kind}")
    return facts
