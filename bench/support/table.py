"""Results as a text table."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from bench.support.result import Aim, Line, NotMeasured, Result, Series

HEAD: Final = ("", "p50", "p95", "beside", "p50", "p95", "ratio (90 % interval)", "aim", "")
MIN_FOR_P95: Final = 10  # with fewer values, the 95th percentile is the largest


def render(lines: Sequence[Line]) -> str:
    """Return the table, grouped by benchmark, with notes below their lines."""
    rows = [row(line) for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(HEAD, *rows, strict=True)]
    text = [_joined(HEAD, widths)]
    for bench, group in groupby(zip(lines, rows, strict=True), key=lambda pair: pair[0].bench):
        text += ["", bench]
        for line, cells in group:
            text.append(_joined(cells, widths))
            text += [f"      {note}" for note in _notes(line)]
    return "\n".join(text) + "\n"


def row(line: Line) -> tuple[str, ...]:
    if isinstance(line, NotMeasured):
        return (line.label, *[""] * (len(HEAD) - 1))
    theirs = line.theirs
    return (
        line.ours.label,
        *_numbers(line.ours),
        theirs.label if theirs else "",
        *(_numbers(theirs) if theirs else ("", "")),
        _ratio(line),
        _aim(line.aim, line.ours),
        {True: "met", False: "MISSED", None: ""}[line.met],
    )


def amount(value: float, unit: str) -> str:
    """Return a number with its unit, to about three digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def _numbers(series: Series) -> tuple[str, str]:
    tail = amount(series.p95, series.unit) if len(series.values) >= MIN_FOR_P95 else "-"
    return amount(series.p50, series.unit), tail


def _ratio(line: Result) -> str:
    spread = line.ratio
    return f"{spread.value:.2f} x ({spread.low:.2f} - {spread.high:.2f})" if spread else ""


def _aim(aim: Aim | None, ours: Series) -> str:
    if aim is None:
        return "-"
    sign = ">=" if aim.at_least else "<="
    return f"{sign} {aim.limit:g} {'x' if aim.of == 'ratio' else ours.unit}"


def _notes(line: Line) -> Iterable[str]:
    if isinstance(line, NotMeasured):
        yield f"not measured: {line.why}"
    elif line.note:
        yield line.note


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return ("  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))).rstrip()
