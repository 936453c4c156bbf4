"""Parameters against results as a picture that needs no script.

Several parameters are drawn as parallel coordinates: an axis for each parameter and one for the result, and a
line for each job.  One parameter is drawn as points over it.  The table beside the picture has all values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runner.dashboard.text import clean, number

HEIGHT: Final = 300
TOP: Final = 40
BOTTOM: Final = 24
LEFT: Final = 96
RIGHT: Final = 48
STEP: Final = 150
"""Between two axes; a sweep with many parameters is wider than a window, and scrolls."""

LEAST_WIDTH: Final = 640

LOG_FROM: Final = 100.0
"""Positive numbers whose largest is at least so many times their least are placed by their logarithm."""

MOST_TICKS: Final = 8
"""Values of an axis that are written beside it; of more numbers those at even distances."""

TICK_GAP: Final = 0.05
"""Least distance of two values beside an axis, as a share of its length."""

LABEL: Final = 14
"""Characters of a value beside an axis; the tip has all of them."""

GRADES: Final = 5
"""Shades of the lines, from the best results to the worst."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """A job of a sweep: what it was given, and what came of it."""

    name: str
    values: Mapping[str, Any]
    result: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A value beside an axis, at a place from 0 (least) to 1."""

    place: float
    text: str

    @property
    def short(self) -> str:
        """The text as far as there is room for it."""
        return _short(self.text)


@dataclass(frozen=True, slots=True)
class Axis:
    """Positions of the values of one parameter, or of the results."""

    name: str
    ticks: tuple[Tick, ...]
    places: Mapping[tuple[int, Any], float]
    is_log: bool = False

    @property
    def short(self) -> str:
        """The name as far as there is room for it: of ``environment.LEARNING_RATE`` the last part."""
        return self.name if _short(self.name) == self.name else _short(self.name.rpartition(".")[2])

    def place(self, value: object) -> float:
        """Return the place of a value, from 0 to 1."""
        return self.places[_key(value)]


@dataclass(frozen=True, slots=True)
class DrawnAxis:
    """An axis in the picture."""

    axis: Axis
    at: float
    """From the left."""
    ticks: tuple[tuple[float, Tick], ...]
    """From the top; of the horizontal axis of points, from the left."""


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job in the picture: a line, or a point; what a mouse shows of it."""

    path: str
    point: tuple[float, float] | None
    """Place of its result."""
    grade: int | None
    """0 for the best fifth; None without a result."""
    is_best: bool
    tip: str


@dataclass(frozen=True, slots=True)
class SweepChart:
    """Parameters against results."""

    kind: str
    """``lines`` for parallel coordinates, ``points`` for one parameter."""
    width: float
    height: float
    top: float
    bottom: float
    right: float
    """Right end of the axes."""
    axes: tuple[DrawnAxis, ...]
    jobs: tuple[DrawnJob, ...]
    left_out: tuple[str, ...]
    """Parameters that are the same in all jobs."""
    title: str
    summary: str


def draw_sweep(jobs: Sequence[SweepJob], metric: str, best: SweepJob | None) -> SweepChart | None:
    """Return the picture of a sweep; None where no job has a result, or none has a parameter."""
    results = [job.result for job in jobs if job.result is not None]
    parameters = list(dict.fromkeys(name for job in jobs for name in job.values))
    if not results or not parameters:
        return None
    differing = [name for name in parameters if len({_key(job.values.get(name)) for job in jobs}) > 1]
    shown = differing or parameters
    axes = [make_axis(name, [job.values[name] for job in jobs if name in job.values]) for name in shown]
    result = make_axis(metric, results)
    left_out = tuple(name for name in parameters if name not in shown)
    title = f"{metric} of {len(jobs)} jobs by {', '.join(shown)}"
    said = _summary(jobs, metric, best, [*axes, result], left_out)
    grades = _grades(jobs, best)
    draw = _points if len(axes) == 1 else _lines
    drawn, width, placed = draw(jobs, axes, result)
    # The best is drawn last, above the others.
    order = sorted(range(len(jobs)), key=lambda each: (jobs[each] is best, each))
    lines = tuple(
        DrawnJob(
            *placed[each],
            grades[each],
            jobs[each] is best,
            _tip(jobs[each], metric),
        )
        for each in order
    )
    kind = "points" if len(axes) == 1 else "lines"
    return SweepChart(
        kind, width, HEIGHT, TOP, HEIGHT - BOTTOM, width - RIGHT, drawn, lines, left_out, title, said
    )


def make_axis(name: str, values: Sequence[object]) -> Axis:
    """Return an axis: by size where all values are numbers, otherwise the different values side by side."""
    keys = list(dict.fromkeys(_key(value) for value in values))
    texts = {_key(value): number(value) if _is_number(value) else clean(value) for value in values}
    if all(kind == 0 for kind, _ in keys):
        return _numbers(name, sorted(keys), texts)
    keys.sort(key=lambda key: (key[0], key[1]))
    places = {key: (index + 0.5) / len(keys) for index, key in enumerate(keys)}
    every = -(-len(keys) // (3 * MOST_TICKS))
    ticks = tuple(Tick(places[key], texts[key]) for key in keys[::every])
    return Axis(name, ticks, places)


def _numbers(name: str, keys: Sequence[tuple[int, float]], texts: Mapping[tuple[int, Any], str]) -> Axis:
    numbers = [value for _, value in keys]
    is_log = numbers[0] > 0 and math.log10(numbers[-1]) - math.log10(numbers[0]) >= math.log10(LOG_FROM)
    # Halves: the distance of two numbers may be larger than the largest one.
    scaled = [math.log10(each) if is_log else each / 2 for each in numbers]
    low, span = scaled[0], scaled[-1] - scaled[0]
    places = {key: (each - low) / span if span else 0.5 for key, each in zip(keys, scaled, strict=True)}
    if len(keys) <= MOST_TICKS:
        ticks = [Tick(places[key], texts[key]) for key in keys]
    else:
        parts = [index / 4 for index in range(5)]
        inner = [10 ** (low + part * span) if is_log else 2 * (low + part * span) for part in parts]
        ticks = [Tick(part, f"{each:.4g}") for part, each in zip(parts, inner, strict=True)]
    return Axis(name, _apart(ticks), places, is_log)


def _apart(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Return the ticks that leave room for each other; the first and the last stay."""
    kept = [ticks[0]]
    for tick in ticks[1:-1]:
        if tick.place - kept[-1].place >= TICK_GAP and ticks[-1].place - tick.place >= TICK_GAP:
            kept.append(tick)
    return (*kept, *([ticks[-1]] if ticks[-1].place - kept[0].place >= TICK_GAP else []))


def _is_number(value: object) -> bool:
    return _key(value)[0] == 0


def _key(value: object) -> tuple[int, Any]:
    """Return the key of a value among others: numbers by their size, other values by their text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            size = float(value)
        except OverflowError:
            size = math.inf
        if math.isfinite(size):
            return 0, size
    return (1, str(value)) if value is not None else (2, "")


def _lines(
    jobs: Sequence[SweepJob], axes: Sequence[Axis], result: Axis
) -> tuple[tuple[DrawnAxis, ...], float, list[tuple[str, tuple[float, float] | None]]]:
    every = max(STEP, (LEAST_WIDTH - LEFT - RIGHT) / len(axes))
    drawn = tuple(
        DrawnAxis(axis, LEFT + index * every, tuple((_down(tick.place), tick) for tick in axis.ticks))
        for index, axis in enumerate([*axes, result])
    )
    placed = []
    for job in jobs:
        along: list[tuple[float, float] | None] = [
            (each.at, _down(each.axis.place(job.values[each.axis.name])))
            if each.axis.name in job.values
            else None
            for each in drawn[:-1]
        ]
        end = None if job.result is None else (drawn[-1].at, _down(result.place(job.result)))
        placed.append((_path([*along, end]), end))
    return drawn, LEFT + every * len(axes) + RIGHT, placed


def _points(
    jobs: Sequence[SweepJob], axes: Sequence[Axis], result: Axis
) -> tuple[tuple[DrawnAxis, ...], float, list[tuple[str, tuple[float, float] | None]]]:
    (axis,) = axes
    wide = LEAST_WIDTH - LEFT - RIGHT
    drawn = (
        DrawnAxis(axis, LEFT, tuple((LEFT + tick.place * wide, tick) for tick in _sparse(axis.ticks))),
        DrawnAxis(result, LEFT, tuple((_down(tick.place), tick) for tick in result.ticks)),
    )
    placed: list[tuple[str, tuple[float, float] | None]] = []
    for job in jobs:
        if axis.name not in job.values:
            placed.append(("", None))
            continue
        x = LEFT + axis.place(job.values[axis.name]) * wide
        if job.result is None:  # a stroke below: it was tried, and there is no result yet
            placed.append((f"M{x:.1f} {HEIGHT - BOTTOM} V{HEIGHT - BOTTOM - 8}", None))
        else:
            placed.append(("", (x, _down(result.place(job.result)))))
    return drawn, LEAST_WIDTH, placed


def _sparse(ticks: Sequence[Tick]) -> Sequence[Tick]:
    """Return the ticks that have room side by side, where texts take more of it."""
    return ticks[:: -(-len(ticks) // MOST_TICKS)]


def _down(place: float) -> float:
    return HEIGHT - BOTTOM - place * (HEIGHT - BOTTOM - TOP)


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Return a line through points, interrupted where there is none."""
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
        else:
            parts.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
            pen = "L"
    return " ".join(parts)


def _grades(jobs: Sequence[SweepJob], best: SweepJob | None) -> list[int | None]:
    """Return the shade of each job by the rank of its result, counted from the best one."""
    known = sorted({job.result for job in jobs if job.result is not None})
    if best is not None and known and best.result == known[-1]:
        known.reverse()
    ranks = {result: index * GRADES // len(known) for index, result in enumerate(known)}
    return [None if job.result is None else ranks[job.result] for job in jobs]


def _tip(job: SweepJob, metric: str) -> str:
    said = "no result" if job.result is None else f"{metric} {number(job.result)}"
    return f"{job.name}: {said}; {_given(job)}"


def _given(job: SweepJob) -> str:
    return ", ".join(f"{name}={number(value)}" for name, value in job.values.items())


def _summary(
    jobs: Sequence[SweepJob],
    metric: str,
    best: SweepJob | None,
    axes: Sequence[Axis],
    left_out: Sequence[str],
) -> str:
    """Return the content of the picture, for those who do not see it."""
    missing = sum(job.result is None for job in jobs)
    by_log = [axis.name for axis in axes if axis.is_log]
    parts = [
        "" if best is None else f"best: {_tip(best, metric)}",
        f"{missing} of {len(jobs)} jobs have no result" if missing else "",
        f"logarithmic: {', '.join(by_log)}" if by_log else "",
        f"the same in all jobs: {', '.join(left_out)}" if left_out else "",
        "the table has all values",
    ]
    return "; ".join(part for part in parts if part)


def _short(value: str) -> str:
    shown = clean(value)
    return shown if len(shown) <= LABEL else f"{shown[: LABEL - 1]}…"
