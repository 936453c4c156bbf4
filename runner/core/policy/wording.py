"""Verdicts in words: what is done, and what brought it about."""

from datetime import timedelta
from typing import Final

from runner.core.policy.adjustments import changed
from runner.core.policy.facts import Facts
from runner.core.policy.model import Adjustment, Rule, Source, Start, Verb

OUT_OF_DEVICE_MEMORY: Final = (
    "ran out of device memory; make its batches smaller, or ask for a larger device (devices.memory)"
)
"""What only the author of a program can do about it."""


def happened(facts: Facts) -> str:
    """Return why an attempt ended, in a few words."""
    cause = str(facts.get("cause") or facts.get("exit.class") or "ended, and nobody knows why").replace(
        "_", " "
    )
    phase = facts.get("phase")
    return cause if phase is None or facts.get("exit.class") == "success" else f"{cause} in {phase}"


def plainly(facts: Facts) -> str:
    """Return the same about a plain program, whose author knows nothing of causes and phases."""
    if facts.get("cause") == "host_oom":
        return "ran out of memory"
    return OUT_OF_DEVICE_MEMORY if facts.get("oom.device") is True else happened(facts)


def doing(verb: Verb, start: Start, adjust: tuple[Adjustment, ...], facts: Facts) -> str:
    """Return what a verdict does: ``resume from step 4000 with micro-batch 256 → 128``."""
    words = {Verb.RESUME: f"resume {_begin(start, facts)}", Verb.RESTART: "restart from step 0"}
    done = words.get(verb, verb.replace("_", " "))
    turned = " and ".join(changed(adjustment, facts) for adjustment in adjust)
    return f"{done} with {turned}" if turned else done


def noticed(rule: Rule, facts: Facts) -> str:
    """Return what a rule says about a running attempt."""
    phase = facts.get("phase")
    said = rule.why or rule.name.replace("-", " ")
    return f"{said}, in {phase}" if phase is not None else said


def because(text: str, rule: Rule) -> str:
    """Return a reason with the words that the policy's author gave."""
    return f"{text} ({rule.why})" if rule.why else text


def span(duration: timedelta) -> str:
    """Return a duration in the unit that suits it."""
    seconds = duration.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _begin(start: Start, facts: Facts) -> str:
    step = facts.get("checkpoint.step")
    match start.source:
        case Source.NEWEST:
            return "from the newest checkpoint" if step is None else f"from step {step}"
        case Source.PREVIOUS:
            return f"from the checkpoint before {'the newest' if step is None else f'step {step}'}"
        case Source.BEFORE_NAN:
            return "from before the loss was not finite"
        case Source.STEP:  # exhaustive
            return f"from step {start.step}"
