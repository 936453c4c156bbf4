"""Economics of a change: the expected time to the end without it, after a resume and after a restart.

Work is counted in items (samples, tokens, rows), rates in items per second, all of them measured.
A rate is a mean with an uncertainty.  A gain is computed at the bounds that are unfavourable to the change,
so that a change counts as faster only if it certainly is.  Without a measured rate the result is None, which
is an unknown fact.  docs/reference/policy.md derives the formulas.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from runner.core.policy.facts import FactValue

MIN_MEASUREMENTS: Final = 20
"""The least number of steps, or groups of steps, for a mean."""

Choice: TypeAlias = Literal["keep", "resume", "restart"]


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured rate, items per second: the mean of ``count`` measurements and their standard deviation."""

    mean: float
    deviation: float
    count: int

    @property
    def low(self) -> float:
        """Return the mean less two standard errors, at least 0."""
        return max(self.mean - self._margin, 0.0)

    @property
    def high(self) -> float:
        return self.mean + self._margin

    @property
    def _margin(self) -> float:
        return 2 * self.deviation / math.sqrt(self.count)


@dataclass(frozen=True, slots=True)
class Work:
    """Amount of work, in items: in all, done in memory, and safe in the newest usable checkpoint.

    ``saved`` is 0 where there is none; ``on_demand`` says that the program saves when it is asked to stop.
    """

    total: float
    done: float
    saved: float = 0.0
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class Overheads:
    """Cost of a change of attempts, seconds: the stop, and the start up to the first step.

    A start loads and verifies the checkpoint and the data, and warms up.
    """

    stop_s: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Risk:
    """Mean time between interruptions by the host, and between saves of the job, in seconds.

    ``interval_s`` is None where it saves nothing on its way.  Without a known mean there is no risk.
    """

    mean_between_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations of a training, and the seconds of one: now, and with the change.

    They come after every so many steps and at the end; ``every`` is None where that is not known.
    ``running_s`` is what the one that runs after step ``Work.done`` still takes; None: none runs.
    """

    every: float | None = None
    now_s: float = 0.0
    new_s: float = 0.0
    running_s: float | None = None

    def after(self, step: float, total: float) -> int:
        """Return the number after a step, up to the end."""
        if not self.every or step >= total:
            return 0
        return math.ceil(total / self.every) - math.floor(step / self.every)


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Expected seconds to the end, at the bounds that speak against a change.

    ``keep_s`` is without the change.  If a stop alone would be good for the job, because it saves then, that
    is no gain of the change: ``keep_s`` is that of the job that is stopped and goes on as it was.  What a
    trial has cost is spent in each of them.  ``resume_s`` is None where nothing is saved: what would be
    resumed begins at step 0.
    """

    keep_s: float
    resume_s: float | None
    restart_s: float

    @property
    def resume_gain(self) -> float | None:
        return None if self.resume_s is None else self.keep_s / self.resume_s

    @property
    def restart_gain(self) -> float:
        return self.keep_s / self.restart_s

    @property
    def best(self) -> Choice:
        """The alternative that ends first; in a tie ``keep`` precedes ``resume``, and that ``restart``."""
        soonest_s = self.restart_s if self.resume_s is None else min(self.resume_s, self.restart_s)
        if self.keep_s <= soonest_s:
            return "keep"
        return "restart" if soonest_s != self.resume_s else "resume"

    def seconds(self) -> dict[Choice, float]:
        """Return the seconds of each alternative that there is."""
        known: dict[Choice, float | None] = {
            "keep": self.keep_s,
            "resume": self.resume_s,
            "restart": self.restart_s,
        }
        return {choice: seconds for choice, seconds in known.items() if seconds is not None}

    def facts(self) -> dict[str, FactValue]:
        """Return the facts for the policy."""
        told: dict[str, FactValue] = {"econ.best": self.best}
        for choice, seconds in self.seconds().items():
            if choice != "keep":
                told[f"econ.{choice}_gain"] = self.keep_s / seconds
                told[f"econ.{choice}_saves_s"] = self.keep_s - seconds
        return told


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """The input of a comparison without the rates.

    ``standing_s`` is what a job that stands still needs for the start without the change; None: it runs.
    """

    work: Work
    costs: Overheads = field(default_factory=Overheads)
    risk: Risk = field(default_factory=Risk)
    evaluations: Evaluations = field(default_factory=Evaluations)
    standing_s: float | None = None

    @property
    def kept(self) -> float:
        """The step from which the next attempt goes on."""
        stops_now = self.work.on_demand and self.standing_s is None
        return self.work.done if stops_now else self.work.saved

    @property
    def change_s(self) -> float:
        """The seconds of stop and start; a job that stands still has stopped."""
        return self.costs.start_s + (self.costs.stop_s if self.standing_s is None else 0.0)

    def evaluations_after(self, step: float) -> int:
        """Return the evaluations of an attempt that goes on from a step, without the running one.

        An attempt that begins at the step after which one runs makes that one, too, and makes it anew.
        """
        again = self.evaluations.running_s is not None and step == self.work.done
        return self.evaluations.after(step, self.work.total) + again


def compare_alternatives(case: ChangeCosts, now: Rate | None, new: Rate | None) -> Alternatives | None:
    """Return the three alternatives; None if a rate is unknown or may be zero, or no work is left."""
    work = case.work
    is_over = work.done >= work.total and case.evaluations.running_s is None
    if now is None or new is None or new.low <= 0 or is_over:
        return None
    resume_s, restart_s = _stopped_s(case, new.low)
    same = replace(case, evaluations=replace(case.evaluations, new_s=case.evaluations.now_s))
    stopped_s = [seconds for seconds in _stopped_s(same, now.high) if seconds is not None]
    return Alternatives(min(_kept_going(case, now.high), *stopped_s), resume_s, restart_s)


def _stopped_s(case: ChangeCosts, rate: float) -> tuple[float | None, float]:
    """Return the seconds to the end of a job that is stopped now: if it is resumed, and if it begins anew."""
    restart_s = case.change_s + _expected(case, _compute_s(case, 0, rate))
    if case.kept <= 0:
        return None, restart_s
    return case.change_s + _expected(case, _compute_s(case, case.kept, rate)), restart_s


def undisturbed_s(case: ChangeCosts, now: Rate | None, new: Rate | None) -> dict[Choice, float]:
    """Return the seconds of each alternative that no interruption comes to; empty if a rate is unknown."""
    found = compare_alternatives(replace(case, risk=Risk()), now, new)
    return {} if found is None else found.seconds()


def _compute_s(case: ChangeCosts, step: float, rate: float) -> float:
    """Return the seconds of steps and evaluations with the change, from a step to the end."""
    return (case.work.total - step) / rate + case.evaluations_after(step) * case.evaluations.new_s


def price_s(case: ChangeCosts, rate: Rate, choice: Choice) -> float | None:
    """Return the seconds that a change costs at the present rate: stop, start, and what is computed again.

    None: nothing is saved from which the job could be resumed.
    """
    if choice == "keep":
        return 0.0
    if choice == "resume" and case.kept <= 0:
        return None
    same = replace(case, evaluations=replace(case.evaluations, new_s=case.evaluations.now_s), risk=Risk())
    found = compare_alternatives(same, Rate(rate.mean, 0.0, rate.count), Rate(rate.mean, 0.0, rate.count))
    return None if found is None else found.seconds()[choice] - found.keep_s


def misses_expectation(promised: float, delivered: float) -> bool:
    """Return True if a change brought less than half of its expected gain, so that it is reverted.

    One that was expected to bring no gain misses nothing.
    """
    return promised > 1 and delivered - 1 < (promised - 1) / 2


def break_even_speedup(work: Work, rate: float, overhead_s: float = 0.0) -> float:
    """Return the ratio of speeds from which a restart from step 0 ends first; infinite if it cannot.

    ``W / (W - D - rate * overhead)``; without overheads ``1 / (1 - share done)``.
    """
    left = work.total - work.done - rate * overhead_s
    return work.total / left if left > 0 else math.inf


# --- Interruptions ------------------------------------------------------------------------------------


def _expected(case: ChangeCosts, compute_s: float) -> float:
    """Return the expected time of a computation that begins from a checkpoint."""
    mean_s, interval_s = case.risk.mean_between_s, case.risk.interval_s
    if mean_s is None:
        return compute_s
    if interval_s is None:
        return expected_unsaved_s(compute_s, mean_s, case.costs.start_s)
    return compute_s * interruption_factor(interval_s, mean_s, case.costs.start_s)


def _kept_going(case: ChangeCosts, rate: float) -> float:
    """Return the expected time to the end of an attempt that goes on, or that starts again as it was.

    One that saves nothing also stands to lose what it has: with the chance that an interruption comes
    before the end, everything since the last checkpoint is computed again.
    """
    work, mean_s, each = case.work, case.risk.mean_between_s, case.evaluations
    if case.standing_s is not None:
        steps_s = (work.total - case.kept) / rate
        return case.standing_s + _expected(case, steps_s + case.evaluations_after(case.kept) * each.now_s)
    left_s = (work.total - work.done) / rate + each.after(work.done, work.total) * each.now_s
    left_s += each.running_s or 0.0
    if mean_s is None or case.risk.interval_s is not None:
        return _expected(case, left_s)
    recovery_s = case.costs.start_s
    all_s = (work.total - work.saved) / rate + case.evaluations_after(work.saved) * each.now_s
    again_s = expected_unsaved_s(all_s, mean_s, recovery_s)
    return -math.expm1(-left_s / mean_s) * (mean_s + recovery_s + again_s)


def interruption_factor(interval_s: float, mean_s: float, recovery_s: float) -> float:
    """Return the factor by which interruptions lengthen computing (Daly 2006).

    ``(M / τ) · exp(R / M) · (exp(τ / M) - 1)``, about ``1 + (τ/2 + R)/M``; the rates have the saves in them.
    """
    return mean_s / interval_s * _exp(recovery_s / mean_s) * _expm1(interval_s / mean_s)


def expected_unsaved_s(compute_s: float, mean_s: float, recovery_s: float) -> float:
    """Return the expected time if every interruption returns to the beginning."""
    return (mean_s + recovery_s) * _expm1(compute_s / mean_s)


_MAX_EXPONENT: Final = 200.0
"""Larger exponents are cut off, because they would overflow."""


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, _MAX_EXPONENT))


def _expm1(exponent: float) -> float:
    return math.expm1(min(exponent, _MAX_EXPONENT))


PRIOR_INTERRUPTIONS: Final = 1.0


PRIOR_S: Final = 12 * 3600.0
"""The assumption before any observation: one interruption in twelve hours."""


def estimate_mtbf_s(observed_s: float, interruptions: int) -> float:
    """Return the estimated seconds between two interruptions of a host.

    ``(prior + observed) / (1 + interruptions)``: the inverse of the posterior mean of the rate.  Count
    whatever ends attempts against their will: preemptions, kills, reboots, lost devices.
    """
    return (PRIOR_S + observed_s) / (PRIOR_INTERRUPTIONS + interruptions)
