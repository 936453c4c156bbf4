"""JSON Schema of the policy file for editors, generated from the fact catalog.

It accepts every valid policy file, and some that ``load`` refuses for reasons that a schema cannot express.
"""

from collections.abc import Iterable
from typing import Any, Final

from runner.core.policy.catalog import facts_at
from runner.core.policy.facts import NUMERIC, DecisionPoint, Fact, FactKind
from runner.core.policy.history import KEPT_STARTS
from runner.core.policy.model import SETTING_CHANGES, VERBS, Mode, OnExhausted, Setting, Source
from runner.files.policy.load import SECTIONS, VERSION
from runner.files.policy.rules import ALWAYS_THERE, AT_EXIT, MAX_TRIES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DURATION: Final = {"type": "string", "pattern": r"^ *([0-9]+(\.[0-9]+)? *(d|h|m|s|ms) *)+$"}


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a policy file."""
    sections = {name: {"type": "array", "items": _rule(moment)} for moment, name in SECTIONS.items()}
    return {
        "$schema": DIALECT,
        "title": "Policy file",
        **_object(
            {
                "policy": {"const": VERSION, "description": "Version of the language."},
                "name": {"type": "string"},
                "extends": {"type": "string", "description": "Another policy, by name or path."},
                "ceilings": _object(_CEILINGS),
                "backoff": _object(_BACKOFF),
                "economics": _object(_ECONOMICS),
                **sections,
            },
            ("policy",),
        ),
        "$defs": {f"when_{moment}": _condition(moment) for moment in DecisionPoint},
    }


def _object(fields: dict[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    made = {"type": "object", "additionalProperties": False, "properties": fields}
    return made | ({"required": list(required)} if required else {})


def _enum(words: Iterable[str]) -> dict[str, Any]:
    return {"enum": [str(word) for word in words]}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _number(least: float, most: float) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


_CEILINGS: Final = {
    "attempts": _whole(1, 1000),
    "wall": {"anyOf": [DURATION, {"type": "null"}]},
    "storm": _object({"attempts": _whole(1, KEPT_STARTS), "within": DURATION}),
    "no_progress": _whole(1, 1000),
}
_BACKOFF: Final = {"first": DURATION, "factor": _number(1, 100), "max": DURATION, "jitter": _number(0, 1)}
_ECONOMICS: Final = {
    "hurdle": _number(1, 100),
    "saving": DURATION,
    "max_swaps": _whole(0, 100),
    "rate_window": DURATION,
}


def _rule(moment: DecisionPoint) -> dict[str, Any]:
    names = (*ALWAYS_THERE, *(AT_EXIT if moment is DecisionPoint.EXIT else ()))
    fields: dict[str, Any] = {
        "name": {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,40}$"},
        "when": {"$ref": f"#/$defs/when_{moment}"},
        "do": _enum(VERBS[moment]),
        "from": {
            "anyOf": [
                _enum(each for each in Source if each is not Source.STEP),
                _object({"step": _whole(0, 10**12)}, ("step",)),
            ]
        },
        "with": _object({str(knob): _turn(knob) for knob in Setting}),
        "charge": {"type": "boolean"},
        "tries": _whole(1, MAX_TRIES),
        "spent": _enum(OnExhausted),
        "mode": _enum(Mode),
        "why": {"type": "string", "maxLength": 200},
    }
    return _object({name: fields[name] for name in names}, ("name", "when", "do"))


def _turn(knob: Setting) -> dict[str, Any]:
    if knob is Setting.MEMORY:
        return {"type": "string", "pattern": r"^[1-4](\.[0-9]{1,3})?x$"}
    return {"type": "string"} if knob is Setting.PROFILE else {"const": SETTING_CHANGES[knob]}


def _condition(moment: DecisionPoint) -> dict[str, Any]:
    own = {"$ref": f"#/$defs/when_{moment}"}
    several = {"type": "array", "minItems": 1, "items": own}
    facts = {name: _wanted(fact) for name, fact in facts_at(moment).items()}
    return _object({"any": several, "all": several, "not": own, **facts})


def _wanted(fact: Fact) -> dict[str, Any]:
    """Return the schema of the comparisons of a fact; ``not`` may hold the same comparisons."""
    value = _value(fact)
    orders = dict.fromkeys(("lt", "le", "ge", "gt"), value) if fact.kind in NUMERIC else {}
    choices = {"in": {"type": "array", "minItems": 1, "items": value}}
    inner = {"anyOf": [value, _object({**orders, **choices})]}
    unit = f", {fact.unit}" if fact.unit else ""
    described = f"{fact.meaning}{unit}"
    return {"description": described, "anyOf": [value, _object({**orders, **choices, "not": inner})]}


def _value(fact: Fact) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    if fact.least is not None:
        bounds["minimum"] = fact.least
    if fact.most is not None:
        bounds["maximum"] = fact.most
    match fact.kind:
        case FactKind.TRUTH:
            return {"type": "boolean"}
        case FactKind.WORD:
            watch = [{"type": "string", "pattern": "^watch/"}] if fact.has_word("watch/") else []
            words = [word for word in fact.values if word != "watch/..."]
            return {"anyOf": [{"enum": words}, *watch]} if watch else {"enum": words}
        case FactKind.TEXT | FactKind.WORDS:
            return {"type": "string"}
        case FactKind.WHOLE | FactKind.WHOLES:
            return {"type": "integer", **bounds}
        case FactKind.NUMBER:  # exhaustive
            return {"type": "number", **bounds}
