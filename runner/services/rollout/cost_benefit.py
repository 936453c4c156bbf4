"""The cost and benefit of a change: whether it pays to stop a job for it, with the arithmetic as text.

The formulas are those of ``runner.core.policy.economics``; here are their inputs and their explanation.  Work
is counted in steps, because a step is the same work before and after the change.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from runner.base.readable import readable_duration
from runner.core.policy.economics import (
    Alternatives,
    ChangeCosts,
    Choice,
    Evaluations,
    Overheads,
    Rate,
    break_even_speedup,
    compare_alternatives,
    price_s,
    undisturbed_s,
)
from runner.core.policy.facts import Facts, FactValue

NOT_BESIDE: Final = "the job took too few steps while its canary ran: the change is at least this fast"

NO_TOTAL: Final = "the number of all steps is not known without workload.steps in the job file"

TOO_UNSURE: Final = "the slowest rate that the measurement leaves possible is 0"


class Canary(NamedTuple):
    """The length of a canary: its steps, and about how long they take with its start."""

    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostBenefit:
    """The cost and benefit of a change; ``found`` is None if a rate has not been measured.

    ``slowed`` is how many times slower the job was while its canary ran beside it, which the rates are free
    of; None: it ran beside the job, and that is not known.  ``interrupts`` is whether an attempt is stopped
    for the change, and ``other`` is the reason why its steps are other work than the steps now.  ``afresh``
    is whether the change could only begin at step 0; ``left_s`` is the time that the job's limit leaves.
    """

    case: ChangeCosts
    now: Rate | None = None
    new: Rate | None = None
    slowed: float | None = 1.0
    interrupts: bool = True
    other: str = ""
    afresh: bool = False
    left_s: float | None = None
    found: Alternatives | None = field(init=False)

    def __post_init__(self) -> None:
        found = None if self.other else compare_alternatives(self.case, self.now, self.new)
        object.__setattr__(self, "found", found)

    def facts(self) -> dict[str, FactValue]:
        """Return the facts of the policy catalog."""
        told = {} if self.found is None else self.found.facts()
        told |= {f"econ.{choice}_in_time": is_in for choice, is_in in self.in_time().items()}
        price, keep_s = self.price_s(), self.unchanged_s()
        if price is not None and keep_s:
            told |= {"econ.price_s": price, "econ.price_share": max(price, 0.0) / keep_s}
        return told

    def in_time(self) -> dict[Choice, bool]:
        """Return, for each alternative, True if it ends within the time that is left, uninterrupted.

        A change must do so for certain; if what runs surely does not, it is enough that it is expected to.
        """
        if self.left_s is None or self.found is None or self.new is None:
            return {}
        found = undisturbed_s(self.case, self.now, self.new)
        if found["keep"] > self.left_s:
            found |= undisturbed_s(self.case, self.now, _certain(self.new))
        return {choice: seconds <= self.left_s for choice, seconds in found.items()}

    def price_s(self) -> float | None:
        """Return the cost of the change at the present rate, in seconds; None if that is not known."""
        if self.now is None or not self.interrupts:
            return None
        return price_s(self.case, self.now, "restart" if self.afresh else "resume")

    def unchanged_s(self) -> float | None:
        """Return the seconds to the end without the change, at the present rate."""
        if self.now is None:
            return None
        same = compare_alternatives(self.case, self.now, self.now)
        return None if same is None else same.keep_s

    def seconds(self, choice: Choice) -> float | None:
        """Return the remaining seconds of a choice; None if it is impossible or unknown."""
        return None if self.found is None else self.found.seconds().get(choice)

    def expected(self, choice: Choice) -> float | None:
        """Return the expected remaining seconds, at the mean rates."""
        if self.other or self.now is None or self.new is None:
            return None
        found = compare_alternatives(self.case, _certain(self.now), _certain(self.new))
        return None if found is None else found.seconds().get(choice)

    def longer_canary(self, steps: int, limit_s: float, pays: Callable[[Facts], bool]) -> Canary | None:
        """Return the shortest longer canary that could decide for the change, as far as its mean rates hold.

        None if the change would pay as it was measured, or would not at its mean rates, or if no canary
        within ``limit_s`` tells it.  ``pays`` returns whether the facts are enough for the change.
        """
        if self.other or self.now is None or self.new is None or pays(self.facts()):
            return None
        is_beside = self.slowed not in {None, 1.0}  # then the rate of the job is of the same stretch of time
        for times in (2, 4, 8, 16, 32):
            new, now = _narrowed(self.new, times), _narrowed(self.now, times if is_beside else 1)
            seconds = self.case.costs.start_s + steps * times / self.new.mean
            if seconds <= limit_s and pays(replace(self, now=now, new=new).facts()):
                return Canary(steps * times, seconds)
        return None

    def json(self) -> dict[str, object]:
        """Return the numbers as JSON values."""
        choices: tuple[Choice, ...] = ("keep", "resume", "restart")
        return {
            "work": {
                "total": self.case.work.total,
                "done": self.case.work.done,
                "saved": self.case.work.saved,
            },
            "rate_now": _rate_json(self.now),
            "rate_new": _rate_json(self.new),
            "start_s": self.case.costs.start_s,
            "seconds": {each: self.seconds(each) for each in choices},
            "expected": {each: self.expected(each) for each in choices},
            "facts": self.facts(),
        }


def _certain(rate: Rate) -> Rate:
    return Rate(rate.mean, 0.0, rate.count)


def _narrowed(rate: Rate, times: int) -> Rate:
    """Return a rate as it would be if it were measured for so many times as long."""
    return replace(rate, deviation=rate.deviation / math.sqrt(times))


def _rate_json(rate: Rate | None) -> dict[str, float] | None:
    return (
        None
        if rate is None
        else {"mean": rate.mean, "low": rate.low, "high": rate.high, "windows": rate.count}
    )


# --- as text -----------------------------------------------------------------------------------------


def explain(worth: CostBenefit) -> tuple[str, ...]:
    """Return the arithmetic as text, one line for each step."""
    return tuple(_lines(worth))


def _lines(worth: CostBenefit) -> Iterator[str]:
    work, case = worth.case.work, worth.case
    yield f"work       {_work(worth)}"
    if not worth.interrupts:
        yield "cost       none: nothing is interrupted, so nothing has to pay"
        return
    yield f"rate now   {_rate(worth.now)}"
    yield f"rate new   {_rate(worth.new)}"
    if worth.found is None or worth.now is None or worth.new is None:
        yield from _unknown(worth)
        return
    yield f"change     {_costs(case.costs)}"
    if case.standing_s is not None:
        yield f"standing   it needs {case.standing_s:.1f} s to start again, with the change or without"
    if case.evaluations.every:
        yield f"evaluation {_evaluations(case.evaluations)}"
    if worth.slowed is None:
        yield f"beside     {NOT_BESIDE}"
    elif worth.slowed != 1:
        felt = f"the job was {worth.slowed:.2f} times slower while its canary ran"
        yield f"beside     {felt}; rates of that time are compared, scaled to a machine without it"
    if (mean_s := case.risk.mean_between_s) is not None:
        yield f"risk       {_risk(mean_s, case.risk.interval_s)}"
    yield f"keep       {_kept(worth, worth.now)} = {worth.found.keep_s:.1f} s{_in_time(worth, 'keep')}"
    yield f"resume     {_resumed(worth, worth.found, worth.new)}"
    restarted = f"{_sum(case, 0, worth.new)} = {worth.found.restart_s:.1f} s"
    gain = _gain(worth.found, worth.found.restart_gain)
    yield f"restart    {restarted}: {gain}{_in_time(worth, 'restart')}"
    faster, needed = worth.new.mean / worth.now.mean, break_even_speedup(work, worth.now.high, case.change_s)
    pays = f"pays from {needed:.2f} times on" if math.isfinite(needed) else "cannot pay any more"
    yield f"best       {worth.found.best}: {faster:.2f} times faster, and a restart {pays}"


def _unknown(worth: CostBenefit) -> Iterator[str]:
    """Yield the price of a change whose gain is not known, and why it is not."""
    price, keep_s, work = worth.price_s(), worth.unchanged_s(), worth.case.work
    if price is not None and keep_s is not None:
        back = 0 if worth.afresh else worth.case.kept
        again = f"{max(work.done - back, 0):.0f} steps again" if work.done > back else "no step again"
        takes, work_left = readable_duration(price), readable_duration(keep_s)
        yield f"price      {_costs(worth.case.costs)}, {again}: {takes} for {work_left} of work"
    yield f"gain       unknown: {worth.other or _missing(worth)}"


def _missing(worth: CostBenefit) -> str:
    """Return the reason why there is no comparison."""
    work = worth.case.work
    if not work.total:
        return NO_TOTAL
    if work.done >= work.total and worth.case.evaluations.running_s is None:
        return f"no step is left of {work.total:.0f}"
    if worth.now is None:
        return "the job has reported too few steps for a rate"
    return "the change has not been measured" if worth.new is None else TOO_UNSURE


def _in_time(worth: CostBenefit, choice: Choice) -> str:
    is_in = worth.in_time().get(choice)
    if is_in is None or worth.left_s is None:
        return ""
    left = f"the {readable_duration(worth.left_s)} that its time limit leaves"
    return f"; {'within' if is_in else 'not within'} {left}"


def _kept(worth: CostBenefit, now: Rate) -> str:
    case = worth.case
    each, standing_s = case.evaluations, case.standing_s
    since = case.work.done if standing_s is None else case.kept
    steps = f"{case.work.total - since:.0f} steps / {now.high:.3g}"
    count = each.after(since, case.work.total) if standing_s is None else case.evaluations_after(since)
    running = each.running_s if standing_s is None else None
    parts = [
        f"{standing_s:.1f} s" if standing_s is not None else "",
        steps,
        f"{count} evaluations * {each.now_s:.1f} s" if count else "",
        f"{running:.1f} s of the one that runs" if running is not None else "",
    ]
    return " + ".join(filter(None, parts))


def _sum(case: ChangeCosts, step: float, new: Rate) -> str:
    """Return the terms of an attempt with the change from a step on."""
    count = case.evaluations_after(step)
    evaluated = f" + {count} evaluations * {case.evaluations.new_s:.1f} s" if count else ""
    return f"{case.change_s:.1f} s + {case.work.total - step:.0f} steps / {new.low:.3g}{evaluated}"


def _evaluations(each: Evaluations) -> str:
    return f"every {each.every:.0f} steps: {each.now_s:.1f} s, with the change {each.new_s:.1f} s"


def _work(worth: CostBenefit) -> str:
    work = worth.case.work
    safe = "saved when it is asked to stop" if work.on_demand else f"{work.saved:.0f} of them in a checkpoint"
    if not work.total:
        done = "1 step is done" if f"{work.done:.0f}" == "1" else f"{work.done:.0f} steps are done"
        return f"{done}, {safe}; how many there are to be is not known"
    share = 100 * work.done / work.total
    return f"{work.done:.0f} of {work.total:.0f} steps are done ({share:.0f} %), {safe}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "not measured"
    return f"{rate.mean:.3g} steps/s, surely {rate.low:.3g} to {rate.high:.3g} ({rate.count} windows)"


def _costs(costs: Overheads) -> str:
    parts = {"stop": costs.stop_s, "start": costs.start_s}
    return (
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items() if seconds) or "costs nothing"
    )


def _risk(mean_s: float, interval_s: float | None) -> str:
    saves = "nothing on its way" if interval_s is None else f"every {readable_duration(interval_s)}"
    return f"one interruption in {readable_duration(mean_s)} is reckoned with; it saves {saves}"


def _resumed(worth: CostBenefit, found: Alternatives, new: Rate) -> str:
    if found.resume_s is None or found.resume_gain is None:
        return "nothing is saved: it would be a restart"
    case = worth.case
    total = f"{_sum(case, case.kept, new)} = {found.resume_s:.1f} s"
    return f"{total}: {_gain(found, found.resume_gain)}{_in_time(worth, 'resume')}"


def _gain(found: Alternatives, gain: float) -> str:
    return f"gain {found.keep_s:.1f} / {found.keep_s / gain:.1f} = {gain:.2f}"
