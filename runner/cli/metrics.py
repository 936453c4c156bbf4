"""``runner metrics`` and ``runner plot``: the curves of jobs as numbers and as pictures."""

from __future__ import annotations

import csv
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from runner.base.errors import UsageError
from runner.cli.console import complain, harmless, on_terminal, say_json
from runner.cli.parameters import as_json, the_job, the_jobs
from runner.cli.table import Cell, Table, print_table, terminal_style, terminal_width
from runner.client.client import find_or_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = list[Any]
"""A point: time, step, mean, least, largest, number of values."""

FIELDS: Final = ("name", "time", "step", "mean", "least", "largest", "values")

CHART_MISSING: Final = (
    "a picture needs matplotlib, which is not installed; pip install 'gpu-job-runner[chart]'"
)

SUFFIXES: Final = (".png", ".svg", ".pdf")

PREFERRED: Final = ("loss", "train_loss", "eval_loss")
"""Metrics that are drawn if nothing is named, the first that a job has."""

PLOT_LINES: Final = 18
"""The height of a plot on a terminal."""


class Line(NamedTuple):
    """One line of a plot."""

    label: str
    name: str
    xs: list[float]
    ys: list[float]


@click.command()
@the_job
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this curve; repeatable.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every point as a line of comma-separated values.")
@as_json
def metrics(job: str, names: tuple[str, ...], *, as_csv: bool, as_json: bool) -> None:
    """Print the curves of a job: what it reported, and what its devices did.

    A point of a long curve is the mean of several values. In a pipe, and with --csv, every point: name,
    time (UTC), step, mean, least, largest and number of values.
    """
    answer = find_or_start(complain).get(_path(job))
    curves = _chosen(answer, names)
    if as_json:
        say_json({**answer, "curves": curves})
    elif as_csv or not on_terminal():
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if as_csv:
            writer.writerow(FIELDS)
        for name, rows in curves.items():
            writer.writerows([harmless(name), _moment(at), *rest] for at, *rest in rows)
    else:
        print_table(make_metrics_table(curves))


@click.command()
@the_jobs
@click.option("--name", metavar="NAME", help="The curve.  [the loss, or the first that there is]")
@click.option("--x", "axis", type=click.Choice(["step", "time"]), default="step", help="The axis.  [step]")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="A .png, .svg or .pdf to write."
)
def plot(jobs: tuple[str, ...], name: str | None, axis: str, output: Path | None) -> None:
    """Draw one curve of one or more jobs, on the terminal or into a file.

    Time is in hours since the first point of each job.
    """
    if output is not None and output.suffix not in SUFFIXES:
        raise click.BadParameter(f"{output}: must end in {', '.join(SUFFIXES)}", param_hint="-o")
    client = find_or_start(complain)
    answers = [client.get(_path(job)) for job in jobs]
    lines = _lines(answers, name, axis)
    title = lines[0].name if len({line.name for line in lines}) == 1 else "value"
    if output is not None:
        _draw(lines, title, axis, output)
        return
    click.echo(_terminal_plot(lines, title, axis))


def _lines(answers: Sequence[dict[str, Any]], name: str | None, axis: str) -> list[Line]:
    """Return a line for each job that has the curve, and tell which have not.

    Raises:
        UsageError: none has it.
    """
    lines, absent = [], []
    for answer in answers:
        try:
            lines.append(_line(answer, name or _usual(answer), axis))
        except UsageError as error:
            absent.append(error)
    if not lines:
        raise absent[0]
    complain(*(f"{error}; left out" for error in absent))
    return lines


def make_metrics_table(curves: dict[str, list[Row]]) -> Table:
    """Return one line per curve: its last value, its least, its largest, and how many values there were."""
    rows = tuple(
        (
            Cell(harmless(name)),
            Cell(_number(points[-1][2]), right=True),
            Cell(_number(min(point[3] for point in points)), right=True),
            Cell(_number(max(point[4] for point in points)), right=True),
            Cell("-" if points[-1][1] is None else str(points[-1][1]), right=True),
            Cell(str(sum(point[5] for point in points)), right=True),
        )
        for name, points in curves.items()
        if points
    )
    columns = ("NAME", "LAST", "LEAST", "LARGEST", "STEP", "VALUES")
    return Table(columns, rows, empty="no numbers")


def _path(job: str) -> str:
    from runner.client.http import quote_path

    return f"/v1/jobs/{quote_path(job)}/curves"


def _chosen(answer: dict[str, Any], names: Sequence[str]) -> dict[str, list[Row]]:
    curves: dict[str, list[Row]] = answer["curves"]
    for name in names:
        if name not in curves:
            raise UsageError(_absent(answer, name))
    return {name: curves[name] for name in names} if names else curves


def _absent(answer: dict[str, Any], name: str) -> str:
    known = ", ".join(answer["curves"]) or "none"
    return f"{answer['name']} (job {answer['job']}): has no curve {name}; it has {known}"


def _usual(answer: dict[str, Any]) -> str:
    curves = answer["curves"]
    found = next((name for name in (*PREFERRED, *curves) if name in curves), None)
    if found is None:
        raise UsageError(f"{answer['name']} (job {answer['job']}): has reported no numbers")
    return str(found)


def _line(answer: dict[str, Any], name: str, axis: str) -> Line:
    if name not in answer["curves"]:
        raise UsageError(_absent(answer, name))
    rows: Iterable[Row] = answer["curves"][name]
    if axis == "step":
        rows = [row for row in rows if row[1] is not None]
        xs = [float(row[1]) for row in rows]
    else:
        rows = list(rows)
        xs = [(row[0] - rows[0][0]) / 3600 for row in rows]
    if not xs:
        raise UsageError(f"{answer['name']} (job {answer['job']}): {name} has no steps; --x time")
    return Line(f"{harmless(answer['name'])} ({answer['job']})", name, xs, [row[2] for row in rows])


def _terminal_plot(lines: Sequence[Line], title: str, axis: str) -> str:
    plotille = import_module("plotille")
    figure = plotille.Figure()
    figure.width, figure.height = max(terminal_width() - 16, 20), PLOT_LINES
    figure.with_colors = terminal_style().colour
    figure.x_label, figure.y_label = _axis(axis), title[:10]
    low, high = min(min(line.ys) for line in lines), max(max(line.ys) for line in lines)
    if low == high:
        low, high = low - 1, high + 1
    figure.set_y_limits(low, high)
    for line in lines:
        figure.plot(line.xs, line.ys, label=line.label)
    text: str = figure.show(legend=True)
    return text


def _draw(lines: Sequence[Line], title: str, axis: str, output: Path) -> None:
    try:
        figure = import_module("matplotlib.figure").Figure(figsize=(9, 5), layout="constrained")
    except ImportError:
        raise UsageError(CHART_MISSING) from None
    axes = figure.add_subplot()
    for line in lines:
        axes.plot(line.xs, line.ys, label=line.label)
    axes.set_xlabel(_axis(axis))
    axes.set_ylabel(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(output)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}; choose another -o") from error
    complain(f"wrote {output}")


def _axis(axis: str) -> str:
    return "step" if axis == "step" else "hours"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: float) -> str:
    return f"{value:.6g}"
