"""The digest of a policy: computed from its canonical text, whose words are those of the policy file.

The canonical text is JSON. It includes every value, defaults too, so two policies have the same text only if
they are equal. Digests are kept with decisions: whoever changes the text changes the digest of every policy.
"""

import hashlib
import json
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, Final

from runner.core.policy.conditions import AllOf, AnyOf, Comparison, Not
from runner.core.policy.model import Adjustment, Economics, Policy

DIGITS: Final = 12
_MICROSECOND: Final = timedelta(microseconds=1)

_WORDS: Final = {"start": "from", "adjust": "with"}
"""Fields that have another name in the policy file."""


def compute_digest(policy: Policy) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a policy's canonical text."""
    return hashlib.sha256(canonical_text(policy).encode()).hexdigest()[:DIGITS]


def canonical_text(policy: Policy) -> str:
    """Return every value of a policy as JSON with sorted keys; durations are whole microseconds."""
    return json.dumps(_plain(policy), sort_keys=True, separators=(",", ":"))


def _plain(value: object) -> Any:  # noqa: ANN401  (JSON)
    match value:
        case Comparison(fact, operator, operand):
            return {"fact": fact, str(operator): _plain(operand)}
        case Not(part):
            return {"not": _plain(part)}
        case AnyOf(parts):
            return {"any": _plain(parts)}
        case AllOf(parts):
            return {"all": _plain(parts)}
        case Adjustment(knob, turn):
            return [knob, turn]
        case tuple():
            return [_plain(each) for each in value]
        case timedelta():
            return value // _MICROSECOND
        case float() if value.is_integer():  # 2 and 2.0, which are equal, have one text
            return int(value)
        case Economics(saving=saving) if saving == Economics().saving:
            # Left out where it is the usual one: policies from before it was a setting keep their digests.
            return {name: each for name, each in _fields(value).items() if name != "saving"}
        case _:
            return _fields(value) if is_dataclass(value) else value


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401  (a dataclass)
    return {_WORDS.get(each.name, each.name): _plain(getattr(value, each.name)) for each in fields(value)}
