"""The cost and benefit of a change: whether it pays to stop a job for it, with the arithmetic as text.

The formulas are those of ``runner.core.policy.economics``; here are their inputs and their explanation.  Work
is counted in steps, because a step is the same work before and after the change.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from runner.core.policy.economics import (
    Alternatives,
    ChangeCosts,
    Choice,
    Overheads,
    Rate,
    break_even_speedup,
    compare_alternatives,
)
from runner.core.policy.facts import FactValue


@dataclass(frozen=True, slots=True)
class CostBenefit:
    """The cost and benefit of a change; ``found`` is None if a rate has not been measured.

    ``slowed`` is how many times slower the job was while its canary ran beside it.  It is not certain, so no
    decision uses it; the expected times do.  ``interrupts`` is whether an attempt is stopped for the change,
    and ``other`` is the reason why its steps are other work than the steps now.
    """

    case: ChangeCosts
    now: Rate | None = None
    new: Rate | None = None
    slowed: float = 1.0
    interrupts: bool = True
    other: str = ""
    found: Alternatives | None = field(init=False)

    def __post_init__(self) -> None:
        found = None if self.other else compare_alternatives(self.case, self.now, self.new)
        object.__setattr__(self, "found", found)

    def facts(self) -> dict[str, FactValue]:
        """Return the facts of the policy catalog."""
        return {} if self.found is None else self.found.facts()

    def seconds(self, choice: Choice) -> float | None:
        """Return the remaining seconds of a choice; None if it is impossible or unknown."""
        if self.found is None:
            return None
        each = {"keep": self.found.keep_s, "resume": self.found.resume_s, "restart": self.found.restart_s}
        return each[choice]

    def expected(self, choice: Choice) -> float | None:
        """Return the expected remaining seconds: at the mean rates, without a canary beside the job."""
        if self.found is None or self.now is None or self.new is None:
            return None
        costs = self.case.costs
        alone = replace(costs, stop_s=costs.stop_s / self.slowed, start_s=costs.start_s / self.slowed)
        case = replace(self.case, costs=alone)
        return CostBenefit(case, _certain(self.now), _certain(self.new, self.slowed)).seconds(choice)

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
            "seconds": {each: self.seconds(each) for each in choices},
            "expected": {each: self.expected(each) for each in choices},
            "facts": self.facts(),
        }


def _certain(rate: Rate, times: float = 1.0) -> Rate:
    return Rate(rate.mean * times, 0.0, rate.count)


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
    work = worth.case.work
    yield f"work       {_work(worth)}"
    if not worth.interrupts:
        yield "cost       none: nothing is interrupted, so nothing has to pay"
        return
    yield f"rate now   {_rate(worth.now)}"
    yield f"rate new   {_rate(worth.new)}"
    if worth.found is None or worth.now is None or worth.new is None:
        missing = worth.other or "both rates must be measured, and some work must be left"
        yield f"gain       unknown: {missing}"
        return
    costs, trial = worth.case.costs, worth.case.trial_s
    yield f"change     {_costs(costs)}{f'; the trial cost {trial:.1f} s' if trial else ''}"
    if worth.slowed > 1:
        felt = f"the job was {worth.slowed:.2f} times slower while its canary ran"
        yield f"beside     {felt}: more can be expected than is certain"
    if (mean_s := worth.case.risk.mean_between_s) is not None:
        yield f"risk       {_risk(mean_s, worth.case.risk.interval_s)}"
    left = work.total - work.done
    yield f"keep       {left:.0f} steps / {worth.now.high:.3g} = {worth.found.keep_s:.1f} s"
    yield f"resume     {_resumed(worth, worth.found, worth.new)}"
    fresh = costs.restart_s
    restarted = (
        f"{fresh:.1f} s + {work.total:.0f} steps / {worth.new.low:.3g} = {worth.found.restart_s:.1f} s"
    )
    yield f"restart    {restarted}: {_gain(worth.found, worth.found.restart_gain)}"
    faster, needed = worth.new.mean / worth.now.mean, break_even_speedup(work, worth.now.high, fresh)
    pays = f"pays from {needed:.2f} times on" if math.isfinite(needed) else "cannot pay any more"
    yield f"best       {worth.found.best}: {faster:.2f} times faster, and a restart {pays}"


def _work(worth: CostBenefit) -> str:
    work = worth.case.work
    safe = "saved when it is asked to stop" if work.on_demand else f"{work.saved:.0f} of them in a checkpoint"
    if not work.total:
        return f"{work.done:.0f} steps are done, {safe}; how many there are to be is not known"
    share = 100 * work.done / work.total
    return f"{work.done:.0f} of {work.total:.0f} steps are done ({share:.0f} %), {safe}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "not measured"
    return f"{rate.mean:.3g} steps/s, surely {rate.low:.3g} to {rate.high:.3g} ({rate.count} windows)"


def _costs(costs: Overheads) -> str:
    parts = {
        "save": costs.save_s,
        "stop": costs.stop_s,
        "start": costs.start_s,
        "data": costs.data_s,
        "load": costs.load_s,
        "warm up": costs.warm_s,
    }
    return (
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items() if seconds) or "costs nothing"
    )


def _risk(mean_s: float, interval_s: float | None) -> str:
    lost = "it saves nothing on its way" if interval_s is None else f"it saves every {interval_s:.0f} s"
    return f"one interruption in {mean_s / 3600:.3g} h is reckoned with; {lost}"


def _resumed(worth: CostBenefit, found: Alternatives, new: Rate) -> str:
    if found.resume_s is None or found.resume_gain is None:
        return "nothing is saved: it would be a restart"
    work, costs = worth.case.work, worth.case.costs
    kept = work.done if work.on_demand else work.saved
    cost = costs.restart_s + costs.load_s + (costs.save_s if work.on_demand else 0.0)
    total = f"{cost:.1f} s + {work.total - kept:.0f} steps / {new.low:.3g} = {found.resume_s:.1f} s"
    return f"{total}: {_gain(found, found.resume_gain)}"


def _gain(found: Alternatives, gain: float) -> str:
    return f"gain {found.keep_s:.1f} / {found.keep_s / gain:.1f} = {gain:.2f}"
