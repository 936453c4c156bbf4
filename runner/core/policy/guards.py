"""Guards: ceilings that no rule can exceed, and checks that protect checkpoints and running attempts.

Each function returns the action that it was given, or another one with the guard that changed it.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from runner.base.readable import readable_duration
from runner.core.policy.adjustments import describe_change, keeps_settings
from runner.core.policy.catalog import FACTS
from runner.core.policy.causes import ExitCause
from runner.core.policy.conditions import evaluate
from runner.core.policy.decision import Action, Guard, Situation
from runner.core.policy.explain import describe_action, describe_exit
from runner.core.policy.facts import Facts
from runner.core.policy.history import History
from runner.core.policy.model import STARTS, Ceilings, Policy, Rule, Source, Verb


def decide_operator_request(facts: Facts) -> Action | None:
    """Return the action that a user requested, which precedes all rules; None after a success."""
    if facts.get("exit.class") == "success":
        return None
    match facts.get("operator.request"):
        case "cancel":
            return Action(Verb.GIVE_UP, "", "cancelled, as asked", limit=Guard.OPERATOR)
        case "hold":
            return Action(Verb.HOLD, "", "held, as asked", limit=Guard.OPERATOR)
        case _:
            return None


# --- Ceilings: another attempt, or none ---------------------------------------------------------------


def apply_ceilings(
    verdict: Action, policy: Policy, after: History, situation: Situation, root: str
) -> Action:
    """Return an action that starts no attempt beyond a ceiling.

    ``after`` is the history with the ended attempt, charged or not as the action says.
    """
    if verdict.verb not in STARTS:
        return verdict
    last = describe_exit(situation.facts)
    if after.charged >= (most := policy.ceilings.attempts):
        used = f"all {most} attempts are used" if most > 1 else "its one attempt is used"
        return _replace_action(verdict, Verb.GIVE_UP, f"{used}; the last: {last}", Guard.ATTEMPTS)
    if (wall := policy.ceilings.wall) is not None and after.ran >= wall:
        used = f"{readable_duration(after.ran)} of running time are used, of {readable_duration(wall)}"
        why = f"{used}; the last: {last}"
        return _replace_action(verdict, Verb.GIVE_UP, why, Guard.WALL)
    stuck = after.times_stuck(root, situation.effective)
    if stuck >= policy.ceilings.no_progress and all(map(keeps_settings, verdict.adjust)):
        why = f"no progress: {stuck} attempts ended alike without a newer checkpoint; the last: {last}"
        return _replace_action(verdict, Verb.GIVE_UP, why, Guard.NO_PROGRESS)
    if exceeds_restart_rate(policy.ceilings, after, situation, verdict.delay):
        storm = policy.ceilings.storm
        why = f"{storm.attempts} attempts started within {readable_duration(storm.within)}; the last: {last}"
        return _replace_action(verdict, Verb.HOLD, why, Guard.STORM)
    return verdict


def exceeds_restart_rate(ceilings: Ceilings, after: History, situation: Situation, delay: timedelta) -> bool:
    """Return True if another start after ``delay`` would exceed the restart rate."""
    opens = situation.now + delay - ceilings.storm.within
    return sum(start > opens for start in after.starts) >= ceilings.storm.attempts


def _replace_action(verdict: Action, verb: Verb, why: str, limit: Guard) -> Action:
    return Action(verb, verdict.rule, why, charged=verdict.charged, limit=limit)


# --- Guards at the end of an attempt ------------------------------------------------------------------


def guard_exit(verdict: Action, history: History, facts: Facts) -> Action:
    """Return an action that finishes no failed job, and restarts none that has lost its checkpoints."""
    if verdict.verb is Verb.FINISH and facts.get("exit.class") != "success":
        why = f"{verdict.reason}; but nothing says that the work is done"
        return _replace_action(verdict, Verb.HOLD, why, Guard.NOT_DONE)
    return _with_checkpoint(verdict, history, facts) if verdict.verb is Verb.RESUME else verdict


def _with_checkpoint(verdict: Action, history: History, facts: Facts) -> Action:
    said = describe_exit(facts)
    if facts.get("checkpoint.present") is False:
        if history.had_checkpoint:
            why = f"the checkpoints that were there are gone; {said}"
            return _replace_action(verdict, Verb.HOLD, why, Guard.LOST_CHECKPOINTS)
        if facts.get("turnable") is False:  # a program may resume from a file of its own
            changed = "".join(f", {describe_change(each, facts)}" for each in verdict.adjust)
            kept = "in the files that it has left" if may_have_saved(facts) else "with the same HOME"
            why = f"restart {kept}{changed}; the runner knows of no checkpoint: {said}"
        else:
            restart = describe_action(Verb.RESTART, verdict.start, verdict.adjust, facts)
            why = f"no checkpoint yet: {restart}: {said}"
        return replace(verdict, verb=Verb.RESTART, reason=why, limit=Guard.NO_CHECKPOINT)
    if facts.get("checkpoint.valid") is False or facts.get("checkpoint.compatible") is False:
        fault = "is valid" if facts.get("checkpoint.valid") is False else "fits what would run next"
        why = f"checkpoints exist and none {fault}; {said}"
        return _replace_action(verdict, Verb.HOLD, why, Guard.UNUSABLE_CHECKPOINTS)
    if verdict.start.source is Source.PREVIOUS and facts.get("checkpoint.count") in (0, 1):
        return _replace_action(
            verdict, Verb.HOLD, f"there is no earlier checkpoint; {said}", Guard.NO_PREVIOUS
        )
    return verdict


def may_have_saved(facts: Facts) -> bool:
    """Return True if an attempt without a known checkpoint has left files that may hold its work."""
    return facts.get("checkpoint.present") is False and "progress.advanced" not in facts


def guard_charge(verdict: Action, rule: Rule, facts: Facts) -> Action:
    """Return an action that charges the attempt, unless the runner itself knows why it is free.

    An attempt is free only if the rule is true without hints of the container, or if the attempt has saved
    a newer checkpoint, or if it ended soon because it waited for its lineage.  The ceiling on starts counts
    that one, too.
    """
    if verdict.charged or facts.get("progress.advanced") is True or _waited_for_lineage(facts):
        return verdict
    proven = {name: value for name, value in facts.items() if not FACTS[name].hint}
    if evaluate(rule.when, proven).truth is True:
        return verdict
    return replace(verdict, charged=True, limit=verdict.limit or Guard.NOT_FREE)


WAITED_S: Final = 300.0
"""An attempt that says that its lineage was busy is believed if it ran for less than this."""


def _waited_for_lineage(facts: Facts) -> bool:
    uptime_s = facts.get("attempt.uptime_s")
    is_short = isinstance(uptime_s, int | float) and uptime_s < WAITED_S
    return is_short and facts.get("cause") == ExitCause.LINEAGE_BUSY


# --- Guards while it runs -----------------------------------------------------------------------------


def guard_change(verdict: Action, policy: Policy, history: History, facts: Facts) -> Action:
    """Return an action that loses no work of a running attempt."""
    if verdict.verb not in STARTS:
        return verdict
    approved = facts.get("operator.approved") is True
    if not approved and history.swaps >= policy.economics.max_swaps:
        why = f"it was changed {history.swaps} times while it ran; another change needs approval"
        return _replace_action(verdict, Verb.KEEP, why, Guard.MAX_SWAPS)
    unfit = _unfit(facts, approved=approved) if verdict.verb is Verb.RESUME else None
    return _replace_action(verdict, Verb.KEEP, unfit[1], unfit[0]) if unfit else verdict


def _unfit(facts: Facts, *, approved: bool) -> tuple[Guard, str] | None:
    """Return the guard and the reason against resuming a running attempt with a change; None: it can."""
    saves = facts.get("checkpoint.on_demand") is True
    kind = facts.get("diff.class")
    if kind is None or kind == "E" or facts.get("checkpoint.compatible") is False:
        return Guard.UNUSABLE_CHECKPOINTS, "no checkpoint would fit the change"
    if not saves and facts.get("checkpoint.valid") is not True:
        return Guard.NO_CHECKPOINT, "there is no checkpoint to resume from, and it does not save when asked"
    if kind == "C" and facts.get("diff.allowed") is not True:
        return (
            Guard.NEEDS_APPROVAL,
            "the change leads training elsewhere, and the job file does not allow that",
        )
    if kind == "D" and not approved:
        return Guard.NEEDS_APPROVAL, "only the weights could be kept, and nobody has approved that"
    return None
