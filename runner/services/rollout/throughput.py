"""The training throughput of an attempt, from the metrics that it has written.

A rate is steps per second of wall time between lines of ``metrics.jsonl``; the effective batch is the unit of
work, however it is computed.  Intervals with an evaluation are left out of the rate and measured separately,
because a trial of a hundred steps may contain none.  Lines are grouped into windows, because the times of
single steps are not independent measurements.
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from runner.core.policy.economics import MIN_MEASUREMENTS, Evaluations, Rate

METRICS_BYTES: Final = 4 * 1024**2
"""Bytes at the end of ``metrics.jsonl`` that are read."""

WINDOWS: Final = 30
"""Windows that many lines are grouped into, about: enough for a mean, long enough to be independent."""


WARM_UP: Final = 4
"""Multiple of the median step from which a step belongs to the start."""

MOST_ALIKE: Final = 0.9
"""The largest correlation of neighbouring windows that is reckoned with: few of them tell no more."""

FEW: Final = 8
"""Stretches of a job that its canary's rate can be compared with at least."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Steps per second while it trains, and seconds that one evaluation takes; None: none was seen."""

    steps: Rate
    eval_s: float | None = None


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """One line of ``metrics.jsonl``: a step, or an evaluation after it."""

    time: float
    step: int
    trained: bool


@dataclass(frozen=True, slots=True)
class _Interval:
    """Time between two lines about steps."""

    steps: int
    seconds: float
    since: float
    evaluated: bool = False

    @property
    def until(self) -> float:
        return self.since + self.seconds


def parse_metrics(raw: bytes) -> tuple[MetricsLine, ...]:
    """Return the lines of a metrics file that are valid; the job may have written others."""
    return tuple(found for each in raw.splitlines() if (found := _line(each)) is not None)


def _line(raw: bytes) -> MetricsLine | None:
    try:
        said = json.loads(raw)
        time, step = float(said["time"]), int(said["step"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return MetricsLine(time, step, "loss" in said) if math.isfinite(time) and step >= 0 else None


Span: TypeAlias = tuple[float, float]
"""Two moments, Unix time."""

ALWAYS: Final[Span] = (-math.inf, math.inf)
NEVER: Final[Span] = (math.inf, -math.inf)


def measure_throughput(
    written: Sequence[MetricsLine],
    within: Span = ALWAYS,
    without: Span = NEVER,
    least: int = MIN_MEASUREMENTS,
) -> Throughput | None:
    """Return the throughput within one span of time and outside of another; None with too few lines."""
    stretches = [each for each in _stretches(written) if _counts(each, within, without)]
    trained = [each for each in stretches if not each.evaluated]
    if len(trained) < least:
        return None
    rate = _rate([each.seconds / each.steps for each in _windows(trained)])
    return Throughput(rate, _evaluation_s(stretches, rate))


def present_throughput(
    written: Sequence[MetricsLine], recent: Iterable[Span], without: Span = NEVER
) -> Throughput | None:
    """Return the throughput in the first of some spans that has enough lines, or in all of the attempt.

    Evaluations are looked for in all of it if the span has none: they may be rarer than it is long, or take
    longer.
    """
    ever = measure_throughput(written, without=without)
    for span in recent:
        if found := measure_throughput(written, span, without):
            return replace(found, eval_s=ever.eval_s) if found.eval_s is None and ever else found
    return ever


def seconds_to_first_step(
    lines: Sequence[MetricsLine], launched: datetime, rate: float, steady: Sequence[MetricsLine] = ()
) -> float:
    """Return the duration of a start: from the launch to the beginning of the first step.

    What the first steps took longer than the ``steady`` ones belongs to it.
    """
    line = (steady or lines)[0]
    return max(line.time - launched.timestamp() - (line.step - lines[0].step + 1) / rate, 0.0)


def without_warm_up(lines: Sequence[MetricsLine]) -> Sequence[MetricsLine]:
    """Return the lines after the first steps if some of those were slow: they compile, or fill a cache.

    Steps are no warm-up if later ones are as slow, and an evaluation between two is none.
    """
    seconds = [
        (after.time - before.time) / max(after.step - before.step, 1) * (before.trained and after.trained)
        for before, after in pairwise(lines)
    ]
    most = max(min(len(seconds) // 4, len(seconds) - MIN_MEASUREMENTS), 0)
    long_s = WARM_UP * statistics.median(seconds) if most else math.inf
    slow = [number for number, each in enumerate(seconds) if each > long_s]
    return lines[slow[-1] + 1 :] if slow and slow[-1] < most else lines


class RunningEvaluation(NamedTuple):
    """An evaluation that runs: for how long, and for how long still, if its log tells that."""

    elapsed_s: float
    left_s: float | None = None


def expect_evaluations(
    every: int | None, old: Throughput | None, new: Throughput | None, running: RunningEvaluation | None
) -> Evaluations:
    """Return the time of a job's evaluations; what one of the two has not shown takes as long as the other's.

    Of the first one nobody knows how long it takes, unless its log or a canary tells that.
    """
    seen_s = new.eval_s if new else None
    now_s = next((each for each in (old.eval_s if old else None, seen_s) if each is not None), 0.0)
    left_s = None
    if running is not None:
        whole_s = running.elapsed_s + (running.left_s or 0.0)
        now_s = whole_s if running.left_s is not None else max(now_s, whole_s)
        left_s = now_s - running.elapsed_s
    return Evaluations(every, now_s, now_s if seen_s is None else seen_s, left_s)


class Pair(NamedTuple):
    """The throughput of a job and of its change under equal conditions.

    ``slowed`` is how many times slower the job was beside its canary; None: that has not been measured, and
    what the canary has shown is what the change reaches at least.
    """

    now: Throughput | None
    new: Throughput | None
    slowed: float | None = None


def compare_beside(alone: Throughput | None, beside: Throughput | None, new: Throughput | None) -> Pair:
    """Return both rates as they would be without the canary.

    The job and its canary share the machine, with each other and with whatever else runs there.  Their rates
    in the same stretch of time are compared, and both are scaled by what the job reaches alone.
    """
    if alone is None or beside is None or new is None:
        return Pair(alone, new)
    slowed = alone.steps.mean / beside.steps.mean
    return Pair(_scaled(beside, slowed, alone.eval_s), _scaled(new, slowed), slowed)


def comparable_rates(pair: Pair) -> tuple[Rate | None, Rate | None]:
    """Return both rates, with bounds that their ratio keeps as certainly as one rate keeps its own.

    Both are hardly at their worse bounds at once, so the margins add up as the errors of a ratio do.
    """
    if pair.now is None or pair.new is None:
        return (pair.now.steps if pair.now else None, pair.new.steps if pair.new else None)
    rates = pair.now.steps, pair.new.steps
    margins = [rate.high / rate.mean - 1 for rate in rates]
    part = math.hypot(*margins) / sum(margins) if any(margins) else 1.0
    now, new = (replace(rate, deviation=rate.deviation * part) for rate in rates)
    return now, new


def _scaled(seen: Throughput, times: float, eval_s: float | None = None) -> Throughput:
    rate = Rate(seen.steps.mean * times, seen.steps.deviation * times, seen.steps.count)
    return Throughput(rate, seen.eval_s / times if eval_s is None and seen.eval_s is not None else eval_s)


def span_of(lines: Sequence[MetricsLine]) -> Span:
    """Return the time in which some lines were written."""
    return lines[0].time, lines[-1].time


def _counts(stretch: _Interval, within: Span, without: Span) -> bool:
    """Return True if a stretch lies within a time, and outside of another one."""
    apart = stretch.until <= without[0] or stretch.since >= without[1]
    return within[0] <= stretch.since and stretch.until <= within[1] and apart


def _rate(seconds_per_step: Sequence[float]) -> Rate:
    """Return the steps per second of windows: the inverse of the mean time of a step.

    The mean of the windows' rates would be too high: a fast window would count as much as a slow one, and
    takes less of the time.  The deviation is carried over to first order, and is larger if neighbours are
    alike: of a machine that gets slower, or a load that comes and goes, many windows tell as little as few.
    """
    count = len(seconds_per_step)
    mean = math.fsum(seconds_per_step) / count
    off = [each - mean for each in seconds_per_step]
    squares = math.fsum(each * each for each in off)
    alike = math.fsum(one * other for one, other in pairwise(off)) / squares if squares else 0.0
    alike = min(max(alike, 0.0), MOST_ALIKE)
    variance = squares / (count - 1) * (1 + alike) / (1 - alike)
    return Rate(1 / mean, math.sqrt(variance) / mean**2, count)


def _stretches(written: Iterable[MetricsLine]) -> Iterator[_Interval]:
    """Yield the time between each two lines about steps; the lines of a repeated step are no time at all."""
    evaluated, last = False, None
    for line in written:
        if not line.trained:
            evaluated = True
            continue
        if last is not None and line.step > last.step and line.time > last.time:
            yield _Interval(line.step - last.step, line.time - last.time, last.time, evaluated)
        last, evaluated = line, False


def _windows(stretches: Sequence[_Interval]) -> Iterator[_Interval]:
    """Yield about ``WINDOWS`` groups of stretches, at least as many as are needed."""
    size = max(1, len(stretches) // WINDOWS)
    for start in range(0, len(stretches) - size + 1, size):
        group = stretches[start : start + size]
        seconds = math.fsum(each.seconds for each in group)
        yield _Interval(sum(each.steps for each in group), seconds, group[0].since)


def _evaluation_s(stretches: Iterable[_Interval], rate: Rate) -> float | None:
    """Return the mean time of an evaluation: what a stretch with one took longer than its steps."""
    extra = [max(each.seconds - each.steps / rate.mean, 0.0) for each in stretches if each.evaluated]
    return math.fsum(extra) / len(extra) if extra else None
