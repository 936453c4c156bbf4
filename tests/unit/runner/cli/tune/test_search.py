"""The deciding of ``runner tune``, on attempts whose speed is made up."""

import math
from collections.abc import Callable
from itertools import count, cycle
from unittest.mock import patch

import pytest

from runner.base.errors import Unavailable
from runner.cli.tune.search import (
    MORE,
    PAIRS,
    Search,
    ShortAttempt,
    Variation,
    Variations,
    ratio_of,
    replaced,
    unequal,
)

FAST = Variation("environment", "FAST", "1", None)
SLOW = Variation("environment", "SLOW", "1", None)
SAME = Variation("profile", "memory_log", "off", "interval")
TWO = Variation("profile", "threads", 2, 4)
ONE = Variation("profile", "threads", 1, 4)

TIMES: dict[Variation, float] = {FAST: 1.5, SLOW: 0.7, SAME: 1.0, TWO: 1.2, ONE: 1.4}


class Machine:
    """Attempts of 10 seconds on a machine that becomes slower with each, with a little noise."""

    def __init__(self, drift: float = 0.97, noise: float = 0.01, time_s: float = 10_000.0) -> None:
        self.left = time_s
        self.asked: list[Variations] = []
        self.broken: dict[Variation, ShortAttempt] = {}
        self._drift, self._noise = drift, cycle((1 + noise, 1 - noise, 1.0, 1 - noise, 1 + noise))

    def measure(self, settings: Variations) -> ShortAttempt:
        self.asked.append(settings)
        self.left -= 10
        for candidate in settings:
            if candidate in self.broken:
                return self.broken[candidate]
        rate = 100.0 * self._drift ** len(self.asked) * next(self._noise)
        return ShortAttempt(rate * math.prod(TIMES[each] for each in settings), 10.0, "", {1: 0.5, 2: 0.4})

    def search(self, *candidates: Variation) -> Search:
        search = Search(self.measure, lambda: self.left)
        search.run(candidates, 10.0)
        return search


def verdicts(search: Search) -> dict[str, tuple[bool, str]]:
    return {row.candidate.title: (row.kept, row.why) for row in search.rows}


def test_what_is_faster_is_kept_though_the_machine_becomes_slower() -> None:
    search = Machine().search(SLOW, FAST, SAME)
    assert search.kept == (FAST,)
    assert verdicts(search)["FAST: null -> 1"] == (True, "faster")
    assert verdicts(search)["SLOW: null -> 1"] == (False, "0.69 x at first sight")
    assert search.final is not None
    assert search.final.low < 1.5 < search.final.high
    assert search.final.low > 1.4


def test_settings_take_turns_so_that_neither_is_always_the_first() -> None:
    machine = Machine()
    machine.search(FAST)
    assert machine.asked[:3] == [(), (FAST,), ()]
    assert machine.asked[3:11] == [(), (FAST,), (FAST,), ()] * 2


def test_what_is_kept_is_what_the_next_one_must_beat() -> None:
    machine = Machine()
    search = machine.search(TWO, FAST)
    assert search.kept == (FAST, TWO)
    assert (FAST, TWO) in machine.asked
    assert search.final is not None
    assert search.final.mean == pytest.approx(1.8, rel=0.02)


def test_the_faster_of_two_values_of_a_setting_is_kept() -> None:
    search = Machine().search(ONE, TWO)
    assert search.kept == (ONE,)
    assert verdicts(search)["threads: 4 -> 2"] == (False, "not faster for certain")


def test_a_better_value_takes_the_place_of_a_kept_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first sight the machine was slow for the better one."""
    machine = Machine()
    first = iter((1.0, 1.15, 1.0, 1.1, 1.0))
    true = machine.measure

    def measure(settings: Variations) -> ShortAttempt:
        share = next(first, None)
        return true(settings) if share is None else ShortAttempt(share, 10.0)

    monkeypatch.setattr(machine, "measure", measure)
    search = machine.search(TWO, ONE)
    assert search.kept == (ONE,)
    assert verdicts(search)["threads: 4 -> 2"] == (False, "threads: 4 -> 1 is faster still")


def test_what_cannot_be_told_from_noise_is_not_kept() -> None:
    search = Machine(drift=1.0, noise=0.2).search(SAME)
    assert search.kept == ()
    assert search.final is None


def test_time_that_is_left_goes_to_what_is_undecided() -> None:
    little = Variation("profile", "optimizer", "fused", "foreach")
    short, long = (Machine(drift=1.0, noise=0.08, time_s=time_s) for time_s in (200.0, 3000.0))
    with patch.dict(TIMES, {little: 1.08}):
        undecided, decided = short.search(little), long.search(little)
    assert undecided.kept == ()
    assert [row.undecided for row in undecided.rows] == [True]
    assert short.left < 2 * PAIRS * 10 + 2 * PAIRS * 10
    assert decided.kept == (little,)
    assert [(row.kept, row.undecided) for row in decided.rows] == [(True, False)]
    assert decided.rows[0].ratio is not None
    assert decided.rows[0].ratio.pairs > PAIRS


def test_time_for_a_few_further_pairs_is_used_before_and_in_the_last_comparison() -> None:
    little = Variation("profile", "optimizer", "fused", "foreach")

    def search(gain: float) -> Search:
        machine = Machine(drift=1.0, noise=0.05, time_s=Search.least_s(10.0) + 2 * MORE * 10.0)
        with patch.dict(TIMES, {little: gain}):
            return machine.search(little)

    unsure, kept = search(1.05), search(1.1)
    assert unsure.rows[0].ratio is not None
    assert unsure.rows[0].ratio.pairs == PAIRS + MORE
    assert kept.final is not None
    assert (kept.kept, kept.final.pairs) == ((little,), PAIRS + MORE)


def test_a_setting_that_surely_brings_next_to_nothing_is_decided() -> None:
    machine = Machine(drift=1.0, noise=0.01)
    search = machine.search(SAME)
    assert [(row.kept, row.undecided) for row in search.rows] == [(False, False)]
    assert machine.left > 0


def test_a_gain_that_does_not_hold_in_the_end_is_given_up() -> None:
    rates = iter([*(1.0, 2.0, 1.0), *(1.0, 2.0, 2.1, 1.0) * 2])  # and then it is as fast as before
    search = Search(lambda _: ShortAttempt(next(rates, 1.0), 10.0), lambda: 1000.0)
    search.run([FAST], 10.0)
    assert search.kept == ()
    assert verdicts(search) == {"FAST: null -> 1": (False, "did not hold when it was measured again")}


def broken_then(machine: Machine, after: int) -> Callable[[Variations], ShortAttempt]:
    """Return measuring in which the changed job fails from some attempt on."""
    true, number = machine.measure, count()

    def measure(settings: Variations) -> ShortAttempt:
        if next(number) >= after and settings:
            return ShortAttempt(None, 10.0, "failed: out of memory")
        return true(settings)

    return measure


@pytest.mark.parametrize("after", [0, 3, 3 + 2 * PAIRS])
def test_what_fails_is_not_kept_whenever_it_fails(after: int) -> None:
    search = Search(broken_then(Machine(), after), lambda: 1000.0)
    search.run([FAST], 10.0)
    assert search.kept == ()
    assert verdicts(search) == {"FAST: null -> 1": (False, "failed: out of memory")}


def test_a_job_that_fails_as_it_is_is_not_tried_with_every_setting() -> None:
    asked: list[Variations] = []

    def measure(settings: Variations) -> ShortAttempt:
        asked.append(settings)
        return ShortAttempt(None, 10.0, "failed: mine is there already; runner logs 2")

    with pytest.raises(Unavailable, match="ran before, and not again: failed: mine is there already;"):
        Search(measure, lambda: 1000.0).run([FAST, SLOW, SAME], 10.0)
    assert asked == [()]


def test_less_work_is_no_gain() -> None:
    machine = Machine()
    machine.broken[FAST] = ShortAttempt(500.0, 10.0, "", {1: 0.5, 2: 0.2})
    search = machine.search(FAST)
    assert search.kept == ()
    assert verdicts(search) == {"FAST: null -> 1": (False, "other work: the first losses are 0.35, not 0.45")}


def test_attempts_without_losses_are_not_compared() -> None:
    assert unequal(ShortAttempt(1.0, 1.0), ShortAttempt(1.0, 1.0, "", {1: 2.0})) == ""


@pytest.mark.parametrize("time_s", [100.0, 200.0, 230.0, 260.0, 330.0])
def test_it_ends_in_time_and_says_what_it_had_no_time_for(time_s: float) -> None:
    machine = Machine(time_s=time_s)
    search = machine.search(FAST, TWO, SAME)
    assert machine.left >= 0
    unknown = [row for row in search.rows if "the time was over" in row.why]
    assert len(search.rows) == 3
    assert unknown
    assert search.kept == () or search.final is not None


def test_what_was_found_keeps_its_time_when_a_slow_attempt_follows() -> None:
    machine = Machine(time_s=Search.least_s(10.0) + 80.0)
    true = machine.measure

    def measure(settings: Variations) -> ShortAttempt:
        machine.left -= 80.0 if SLOW in settings else 0.0
        return true(settings)

    search = Search(measure, lambda: machine.left, longest_s=90.0)
    search.run([FAST, SLOW], 10.0)
    assert search.kept == (FAST,)


def test_the_least_time_is_enough_for_one_setting() -> None:
    machine = Machine(time_s=Search.least_s(10.0))
    assert machine.search(FAST).kept == (FAST,)


def test_a_ratio_is_the_geometric_mean_with_the_interval_of_student() -> None:
    ratio = ratio_of([(1.0, 2.0), (2.0, 1.0), (1.0, 2.0), (2.0, 4.0)])
    assert ratio.mean == pytest.approx(math.sqrt(2))
    assert math.log(ratio.high) - math.log(ratio.mean) == pytest.approx(2.353 * math.log(2) / 2)
    assert ratio.low * ratio.high == pytest.approx(ratio.mean**2)


def test_a_setting_has_one_value() -> None:
    assert replaced((ONE, FAST), TWO) == (FAST, TWO)


def test_values_are_written_as_in_a_file() -> None:
    assert (
        Variation("profile", "clone_batches", value=False, before=True).title
        == "clone_batches: true -> false"
    )
    assert Variation("profile", "micro_batch", None, 4).title == "micro_batch: 4 -> null"
