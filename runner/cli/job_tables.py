"""Jobs as tables on a terminal.  The only module of the command line, with the live line, that loads rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.cli import formatting
from runner.cli.console import harmless, takes_escapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runner.client.types import JobDetail, JobSummary

COLOURS: Final = {
    "running": "green", "starting": "green", "succeeded": "green", "failed": "red", "held": "yellow",
    "cancelled": "yellow", "stopping": "yellow",
    "lent": "green", "foreign": "red", "dirty": "yellow", "quarantined": "red", "drained": "yellow",
}  # fmt: skip


SPARE: Final = ("TRY", "STEP", "SINCE", "OWNER", "NAME")
"""Columns of ``runner list`` that a narrow screen does without, the least missed first."""

LAST_COLUMN: Final = 16
"""What should be left to the last column, which takes several lines where it must."""


def stdout() -> Console:
    """Return standard output; without colours where the terminal is not known to have any."""
    return Console(color_system="auto" if takes_escapes() else None)


def print_jobs(jobs: list[JobSummary], now: float, console: Console | None = None) -> None:
    """Print one row per job."""
    columns = ("JOB", "NAME", "OWNER", "STATE", "TRY", "STEP", "SINCE", "WHY")
    _print(columns, [_job_cells(job, now) for job in jobs], SPARE, console or stdout())


def print_cells(
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    spare: Iterable[str] = (),
    console: Console | None = None,
) -> None:
    """Print rows whose last cell may take several lines; the words for states have their colours.

    ``spare`` are columns that a narrow screen does without, the least missed first.
    """
    cells = [[Text(harmless(cell), COLOURS.get(cell, "")) for cell in row] for row in rows]
    _print(tuple(columns), cells, spare, console or stdout())


def _print(
    columns: tuple[str, ...], rows: Sequence[Sequence[Text]], spare: Iterable[str], console: Console
) -> None:
    kept = _kept(columns, rows, spare, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number in kept[:-1]:
        table.add_column(columns[number], no_wrap=True, min_width=_width(columns, rows, number))
    table.add_column(columns[-1], ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*(row[number] for number in kept))
    console.print(table)


def _kept(
    columns: tuple[str, ...], rows: Sequence[Sequence[Text]], spare: Iterable[str], width: int
) -> list[int]:
    """Return the numbers of as many columns as leave the last one some room."""
    kept, given_up = list(range(len(columns))), list(spare)
    while given_up and _needed(columns, rows, kept) > width:
        kept.remove(columns.index(given_up.pop(0)))
    return kept


def _needed(columns: tuple[str, ...], rows: Sequence[Sequence[Text]], kept: Sequence[int]) -> int:
    last = min(_width(columns, rows, kept[-1]), LAST_COLUMN)
    return sum(_width(columns, rows, number) + 1 for number in kept[:-1]) + last


def _width(columns: tuple[str, ...], rows: Sequence[Sequence[Text]], number: int) -> int:
    return max(len(columns[number]), *(row[number].cell_len for row in rows), 0)


def print_job(job: JobDetail, now: float, console: Console | None = None) -> None:
    """Print what is known about one job, and its attempts."""
    console = console or stdout()
    grid = Table.grid(padding=(0, 2))
    for name, value in formatting.facts(job):
        text = str(value)
        if name in {"since", "submitted"}:
            text += f" ({formatting.age(text, now)} ago)"
        grid.add_row(Text(name, "bold"), Text(harmless(text), COLOURS.get(text, "")))
    console.print(grid)
    if job["attempts"]:
        console.print()
        console.print(attempts_table(job))


def attempts_table(job: JobDetail) -> Table:
    """Return one row per attempt; ``make demo`` ends with it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in formatting.ATTEMPT_COLUMNS:
        if column != "placed":
            table.add_column(column.replace("_", " ").upper(), no_wrap=column != "verdict")
    for attempt in job["attempts"]:
        cells = zip(formatting.ATTEMPT_COLUMNS, formatting.attempt_cells(attempt), strict=True)
        table.add_row(*(_cell(value) for column, value in cells if column != "placed"))
    return table


def _job_cells(job: JobSummary, now: float) -> list[Text]:
    word = formatting.state_word(job)
    return [
        _cell(job["id"]),
        _cell(job["name"]),
        _cell(job["owner"]),
        Text(word, COLOURS.get(word, "")),
        _cell(job["attempt"]),
        _cell(formatting.progress_share(job)),
        _cell(formatting.age(job["since"], now)),
        Text(harmless(job["why"], keep="\n")),
    ]


def _cell(value: object) -> Text:
    return Text("-" if value is None or value == "" else harmless(str(value)))
