"""Situations in which a change is offered to a running job, and the end of each alternative by brute force.

A situation says how things truly are.  The decision sees what a daemon would see: steps with noise, a canary
of the change, the newest checkpoint.  Then each alternative is played out step by step, with the evaluations,
the saves and the interruptions of the situation.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from runner.core.policy.catalog import validate_facts
from runner.core.policy.decision import Situation
from runner.core.policy.economics import (
    MIN_MEASUREMENTS,
    ChangeCosts,
    Choice,
    Overheads,
    Risk,
    Work,
)
from runner.core.policy.evaluate import decide, pays
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.history import History
from runner.core.policy.model import STARTS, Policy
from runner.services.rollout.cost_benefit import CostBenefit
from runner.services.rollout.measurement import LONGEST
from runner.services.rollout.throughput import (
    FEW,
    MetricsLine,
    Pair,
    RunningEvaluation,
    Throughput,
    comparable_rates,
    compare_beside,
    expect_evaluations,
    measure_throughput,
)
from runner.services.rollout.trial import TIME_LIMIT

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
SEEN: Final = 300
"""Steps of the job that are looked at."""

LONGEST_S: Final = TIME_LIMIT.total_seconds()
"""The longest canary that is offered."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A change that is offered to a running job: steps, steps per second, seconds."""

    title: str
    total: int
    done: int
    now: float
    new: float
    saved: int = 0
    """The step of the newest checkpoint; 0: there is none."""
    on_demand: bool = False
    every: int | None = None
    """Steps between two checkpoints."""
    start_s: float = 20.0
    stop_s: float = 3.0
    eval_every: int | None = None
    eval_now_s: float = 0.0
    eval_new_s: float = 0.0
    evaluated: float | None = None
    """The share of the evaluation after step ``done`` that is over; None: none runs."""
    bar: bool = False
    """True if its log tells how much of that is left."""
    noise: float = 0.05
    """The standard deviation of the time of a step, as a share."""
    alike: float = 0.0
    """The correlation of the times of neighbouring steps: a load that comes and goes."""
    drift: float = 0.0
    """The share by which the machine gets slower while something is measured."""
    canary: int = 100
    measured: bool = True
    stands: bool = False
    """True if the job stands still for its canary."""
    beside: float = 1.0
    """Factor by which the canary is slower because the job runs beside it."""
    kind: str = "B"
    allowed: bool = True
    approved: bool = False
    left_s: float | None = None
    """Time that the time limit leaves."""
    interrupted: tuple[float, ...] = ()
    """Interruptions of attempts, counted from the decision."""
    mean_s: float | None = None
    """The mean time between interruptions of its host; None: there were none."""

    @property
    def kept(self) -> int:
        """The step from which a resumed attempt goes on."""
        return self.done if self.on_demand else self.saved

    def admissible(self) -> tuple[Choice, ...]:
        """Return what may be done: nothing is thrown away that a checkpoint holds, unless a person agrees."""
        if self.kind == "E":
            return ("keep", "restart") if self.approved else ("keep",)
        if self.kind == "C" and not self.allowed:
            return ("keep",)
        return ("keep", "resume") if self.kept else ("keep", "restart")


# --- what a daemon sees


@dataclass(frozen=True, slots=True)
class _Pace:
    """The true speed of an attempt: steps per second, and its evaluations."""

    rate: float
    every: int | None
    eval_s: float


def _measure(
    pace: _Pace, offer: Offer, draw: random.Random, steps: range, least: int = MIN_MEASUREMENTS
) -> Throughput | None:
    """Return what is measured of some steps, with evaluations after every so many of them."""
    lines, at, off = [], 0.0, 0.0
    for number, step in enumerate(steps):
        off = offer.alike * off + math.sqrt(1 - offer.alike**2) * draw.gauss(0, 1)
        at += max(1 + offer.noise * off, 0.05) * (1 + offer.drift * number / len(steps)) / pace.rate
        lines.append(MetricsLine(at, step, trained=True))
        if pace.every and step % pace.every == 0 and step < steps[-1]:
            at += pace.eval_s
            lines.append(MetricsLine(at, step, trained=False))
    return measure_throughput(lines, least=least)


def _pair(offer: Offer, draw: random.Random) -> Pair:
    """Return what was measured of the job and of its canary, as they are without each other."""
    before, began = _Pace(offer.now, offer.eval_every, offer.eval_now_s), max(offer.done - SEEN, 0)
    seen = range(began + 1, offer.done + 1)
    now = _measure(before, offer, draw, seen)
    evaluated = offer.eval_every is not None and offer.done > offer.eval_every
    if now is not None and now.eval_s is None and evaluated:  # earlier than what is looked at
        now = Throughput(now.steps, offer.eval_now_s)
    if not offer.measured:
        return Pair(now, None)
    every = min(offer.eval_every, offer.canary // 2) if offer.eval_every else None
    tried = _Pace(offer.new / offer.beside, every, offer.eval_new_s * offer.beside)
    slowed = replace(before, rate=offer.now / offer.beside, every=None)
    least = 0 if offer.stands else math.ceil((FEW + 1) * tried.rate / slowed.rate)
    steps = min(max(offer.canary, least), LONGEST * offer.canary)
    new = _measure(tried, offer, draw, range(offer.saved + 1, offer.saved + steps + 1))
    if offer.stands:
        return Pair(now or _measure(before, offer, draw, seen, FEW), new)
    meanwhile = range(1, round(steps * slowed.rate / tried.rate) + 1)
    beside = _measure(slowed, offer, draw, meanwhile, FEW)
    return compare_beside(now or beside, beside, new)


def weigh(offer: Offer) -> CostBenefit:
    """Return the cost and benefit of a change as a daemon computes them."""
    draw = random.Random(offer.title)  # noqa: S311  not for cryptography
    now, new, slowed = pair = _pair(offer, draw)
    start_s = offer.start_s * offer.beside * (1 + 0.1 * draw.gauss(0, 1)) / (slowed or 1.0)
    saves = offer.every / now.steps.mean if offer.every and now else None
    running = None
    if offer.evaluated is not None:
        elapsed_s = offer.evaluated * offer.eval_now_s
        left_s = offer.eval_now_s - elapsed_s
        running = RunningEvaluation(elapsed_s, left_s if offer.bar else None)
    case = ChangeCosts(
        Work(float(offer.total), float(offer.done), float(offer.saved), offer.on_demand),
        Overheads(stop_s=offer.stop_s if new else 0.0, start_s=start_s),
        Risk(offer.mean_s, saves),
        expect_evaluations(offer.eval_every, now, new, running),
        start_s if offer.stands else None,
    )
    beside, afresh = 1.0 if offer.stands else slowed, offer.kind == "E"
    return CostBenefit(case, *comparable_rates(pair), beside, afresh=afresh, left_s=offer.left_s)


def choose(offer: Offer, policy: Policy) -> Choice:
    """Return the decision of a policy, after the longer canaries that are offered in place of one."""

    def would_pay(known: Facts) -> bool:
        return any(pays(policy.economics, verb, {**known, "diff.class": offer.kind}) for verb in STARTS)

    while (chosen := _decided(offer, policy)) == "keep":
        longer = weigh(offer).longer_canary(offer.canary, LONGEST_S, would_pay)
        if longer is None:
            break
        offer = replace(offer, canary=longer.steps)
    return chosen


def _decided(offer: Offer, policy: Policy) -> Choice:
    there = offer.saved > 0
    facts: dict[str, FactValue] = {
        "diff.class": offer.kind,
        "diff.allowed": offer.allowed,
        "operator.approved": offer.approved,
        "checkpoint.present": there,
        "checkpoint.valid": there,
        "checkpoint.on_demand": offer.on_demand,
        **({"checkpoint.compatible": offer.kind != "E"} if there else {}),
        **weigh(offer).facts(),
    }
    situation = Situation(validate_facts(facts, DecisionPoint.CHANGE), NOW)
    verb = str(decide(policy, DecisionPoint.CHANGE, History(), situation).action.verb)
    return verb if verb in {"resume", "restart"} else "keep"  # type: ignore[return-value]  # words of Choice


# --- what comes of it


def play(offer: Offer, choice: Choice) -> float:
    """Return the seconds to the end of the job with one alternative; infinite if it ends out of time."""
    changed = choice != "keep"
    rate = offer.new if changed else offer.now
    eval_s = offer.eval_new_s if changed else offer.eval_now_s
    saved = 0 if choice == "restart" else offer.kept if changed or offer.stands else offer.saved
    step = offer.done if choice == "keep" and not offer.stands else saved
    clock_s = offer.start_s if changed or offer.stands else 0.0
    clock_s += offer.stop_s if changed and not offer.stands else 0.0
    if offer.evaluated is not None and step == offer.done:
        clock_s += eval_s * (1 - offer.evaluated if choice == "keep" and not offer.stands else 1)
    blows = list(offer.interrupted)
    while step < offer.total:
        step, clock_s = step + 1, clock_s + 1 / rate
        if offer.eval_every and (step % offer.eval_every == 0 or step == offer.total):
            clock_s += eval_s
        if offer.every and step % offer.every == 0:
            saved = step
        if blows and clock_s > blows[0]:
            step, clock_s = saved, blows.pop(0) + offer.start_s
    return clock_s if offer.left_s is None or clock_s <= offer.left_s else math.inf


@dataclass(frozen=True, slots=True)
class Played:
    """A situation, the choice, and the seconds of each admissible alternative."""

    offer: Offer
    chosen: Choice
    seconds: dict[Choice, float]

    @property
    def fastest(self) -> Choice:
        return min(self.seconds, key=lambda choice: self.seconds[choice])

    @property
    def is_fastest(self) -> bool:
        return self.seconds.get(self.chosen) == self.seconds[self.fastest]

    @property
    def regret(self) -> float:
        """The share by which the choice takes longer than the fastest alternative."""
        took_s = self.seconds.get(self.chosen, math.inf)
        return 0.0 if self.is_fastest else took_s / self.seconds[self.fastest] - 1

    @property
    def is_worse_than_nothing(self) -> bool:
        return self.seconds.get(self.chosen, math.inf) > self.seconds["keep"]


def play_all(offer: Offer, policy: Policy) -> Played:
    """Return a situation with its choice and the ends of all its alternatives."""
    return Played(offer, choose(offer, policy), {each: play(offer, each) for each in offer.admissible()})


def table(played: Sequence[Played]) -> str:
    """Return the situations as a table for people: the seconds of each alternative, and the choice."""
    head = "| a change is offered | keep | resume | restart | chosen | |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(_row, played))


def _row(each: Played) -> str:
    seconds = (each.seconds.get(choice) for choice in ("keep", "resume", "restart"))
    cells = ["-" if s is None else "not in time" if s == math.inf else f"{s:,.0f}" for s in seconds]
    mark = "fastest" if each.is_fastest else f"{each.regret:.1%} slower than *{each.fastest}*"
    return f"| {' | '.join([each.offer.title, *cells, each.chosen, mark])} |\n"


# --- the situations

_EPOCHS: Final = Offer("", 1000, 84, 0.5, 2.5, every=100)
_GPU: Final = Offer("", 4000, 2000, 0.2, 0.4, saved=1900, every=100, start_s=90, stop_s=10)
_BAR: Final = Offer(
    "", 6000, 50, 0.0305, 0.0305, eval_every=50, eval_now_s=3217, eval_new_s=378, evaluated=0.846, bar=True,
    start_s=60,
)  # fmt: skip
_PROGRAM: Final = Offer("", 2000, 400, 1.0, 5.35, kind="C", every=500)


def _named(base: Offer, title: str, **other: object) -> Offer:
    return replace(base, title=title, **other)  # type: ignore[arg-type]  # fields of Offer


SITUATIONS: Final = (
    _named(_BAR, "84 % of the validation bar, first of 120 epochs, nothing saved"),
    _named(_BAR, "the same, saved before the validation", saved=50, every=50),
    _named(_BAR, "the same, the last epoch", total=50, saved=50, every=50),
    _named(_BAR, "the same, the last epoch, nothing saved", total=50),
    _named(_BAR, "the same, two epochs, nothing saved", total=100),
    _named(_BAR, "99 % of the last bar, saved before it", total=50, saved=50, every=50, evaluated=0.99),
    _named(_BAR, "the bar of a built-in workload, third epoch", done=150, saved=150, every=50, bar=False),
    _named(_EPOCHS, "84 % of the first of ten epochs, 5 x as fast"),
    _named(_EPOCHS, "84 % of the only epoch, 5 x as fast", total=100),
    _named(_EPOCHS, "84 % of the only epoch, 7 x as fast", total=100, new=3.5, start_s=2),
    _named(_EPOCHS, "84 % of the only epoch, 20 x as fast", total=1000, done=840, every=1000, new=10),
    _named(_EPOCHS, "42 % of the only epoch, 1.5 x as fast", total=1000, done=420, every=1000, new=0.75),
    _named(_EPOCHS, "42 % of the only epoch, 2.5 x as fast", total=1000, done=420, every=1000, new=1.25),
    _named(_EPOCHS, "84 % of the last of ten epochs, 5 x as fast", done=984, saved=900),
    _named(_EPOCHS, "84 % of the last of ten epochs, 1.5 x as fast", done=984, saved=900, new=0.75),
    _named(_EPOCHS, "in the middle of ten epochs, 1.3 x as fast", done=550, saved=500, new=0.65),
    _named(_EPOCHS, "just before a checkpoint, 1.05 x as fast", done=599, saved=500, new=0.525),
    _named(_GPU, "half of 5.5 h, twice as fast"),
    _named(_GPU, "half of 5.5 h, 1.1 x as fast", new=0.22, saved=2000),
    _named(_GPU, "half of 5.5 h, 1.1 x as fast, a checkpoint 100 steps ago", new=0.22),
    _named(_GPU, "half of 5.5 h, 1.01 x as fast", new=0.202),
    _named(_GPU, "half of 5.5 h, as fast as before", new=0.2),
    _named(_GPU, "half of 5.5 h, 0.41 x as fast", new=0.082),
    _named(_GPU, "half of 5.5 h, 0.95 x as fast", new=0.19),
    _named(_GPU, "the last minutes of 5.5 h, twice as fast", done=3980, saved=3900),
    _named(_GPU, "twice as fast after a start of 20 min", start_s=1200),
    _named(_GPU, "1.2 x as fast after a start of 20 min", start_s=1200, new=0.24),
    _named(_GPU, "twice as fast, saved when it is asked", on_demand=True, saved=0, every=None),
    _named(_GPU, "1.15 x as fast, saved when it is asked", on_demand=True, saved=0, every=None, new=0.23),
    _named(_GPU, "a job that stands still, 1.2 x as fast", stands=True, on_demand=True, saved=2000,
           new=0.24),
    _named(_GPU, "a job that stands still, 0.41 x as fast", stands=True, on_demand=True, saved=2000,
           new=0.082),
    _named(_GPU, "a job that stands still, 5 min left, 1.3 x as fast", stands=True, on_demand=True, done=3940,
           saved=3940, new=0.26),
    _named(_GPU, "steps of very different length, twice as fast", noise=0.6),
    _named(_GPU, "steps of very different length, 0.8 x as fast", noise=0.6, new=0.16),
    _named(_GPU, "a canary that the job makes half as fast, 3 x as fast", beside=2.0, new=0.6),
    _named(_GPU, "a canary that the job makes half as fast, 1.5 x as fast", beside=2.0, new=0.3),
    _named(_GPU, "a canary of 25 steps, 1.5 x as fast", canary=25, new=0.3),
    _named(_GPU, "validations are most of the time, and get 9 x as fast", eval_every=200, eval_now_s=2700,
           eval_new_s=300, new=0.2),
    _named(_GPU, "validations get 3 x as slow, steps 1.3 x as fast", eval_every=200, eval_now_s=900,
           eval_new_s=2700, new=0.26),
    _named(_GPU, "within the time limit only with the change", left_s=9700.0, new=0.225),
    _named(_GPU, "beyond the time limit with the change, too", left_s=4000.0, new=0.22, saved=2000),
    _named(_GPU, "interrupted twice a night, twice as fast", interrupted=(3000.0, 9000.0), mean_s=6000),
    _named(_EPOCHS, "interrupted before its first checkpoint, 5 x as fast", every=500,
           interrupted=(600.0,), mean_s=1800),
    _named(_PROGRAM, "a program, nothing saved yet, 5.35 x as fast"),
    _named(_PROGRAM, "a program that saves when it is asked, 5.35 x as fast", on_demand=True),
    _named(_PROGRAM, "a program late in its only epoch, 2 x as fast", done=1800, every=2000, new=2.0),
    _named(_PROGRAM, "a program with a checkpoint, 0.7 x as fast", done=900, saved=500, new=0.7),
    _named(_PROGRAM, "a program whose owner allows nothing", allowed=False),
    _named(_PROGRAM, "a program, 321 s of work again for 1 s", done=1999, saved=1698, every=1698,
           measured=False),
    _named(_GPU, "another model, 10 x as fast, nobody has agreed", kind="E", new=2.0),
    _named(_GPU, "another model, 10 x as fast, agreed", kind="E", new=2.0, approved=True),
    _named(_GPU, "a change that nobody has measured", new=0.1, measured=False),
)  # fmt: skip
