"""Jobs as tables on a terminal.  The only module of the command line, with the live line, that loads rich."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.cli import render
from runner.cli.output import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runner.answers import Detail, Summary

COLOURS: Final = {
    "running": "green", "starting": "green", "succeeded": "green", "failed": "red", "held": "yellow",
    "cancelled": "yellow", "stopping": "yellow",
    "lent": "green", "foreign": "red", "dirty": "yellow", "quarantined": "red", "drained": "yellow",
}  # fmt: skip


def print_jobs(jobs: list[Summary], now: float, console: Console | None = None) -> None:
    """Print one row per job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "NAME", "OWNER", "STATE", "TRY", "STEP", "SINCE"):
        table.add_column(column, no_wrap=True)
    table.add_column("WHY", ratio=1)
    for job in jobs:
        table.add_row(*_job_cells(job, now))
    (console or Console()).print(table)


def print_cells(
    columns: Iterable[str], rows: Iterable[Iterable[str]], console: Console | None = None
) -> None:
    """Print rows whose last cell may take several lines; the words for states have their colours."""
    *narrow, wide = columns
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in narrow:
        table.add_column(column, no_wrap=True)
    table.add_column(wide, ratio=1)
    for row in rows:
        table.add_row(*(Text(harmless(cell), COLOURS.get(cell, "")) for cell in row))
    (console or Console()).print(table)


def print_job(job: Detail, now: float, console: Console | None = None) -> None:
    """Print what is known about one job, and its attempts."""
    console = console or Console()
    grid = Table.grid(padding=(0, 2))
    for name, value in render.facts(job):
        text = str(value)
        if name in {"since", "submitted"}:
            text += f" ({render.age(text, now)} ago)"
        grid.add_row(Text(name, "bold"), Text(harmless(text), COLOURS.get(text, "")))
    console.print(grid)
    if job["attempts"]:
        console.print()
        console.print(attempts_table(job))


def attempts_table(job: Detail) -> Table:
    """Return one row per attempt; ``make demo`` ends with it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in render.ATTEMPT_COLUMNS:
        if column != "placed":
            table.add_column(column.replace("_", " ").upper(), no_wrap=column != "verdict")
    for attempt in job["attempts"]:
        cells = zip(render.ATTEMPT_COLUMNS, render.attempt_cells(attempt), strict=True)
        table.add_row(*(_cell(value) for column, value in cells if column != "placed"))
    return table


def _job_cells(job: Summary, now: float) -> list[Text]:
    word = render.state_word(job)
    return [
        _cell(job["id"]),
        _cell(job["name"]),
        _cell(job["owner"]),
        Text(word, COLOURS.get(word, "")),
        _cell(job["attempt"]),
        _cell(render.steps(job["progress"])),
        _cell(render.age(job["since"], now)),
        Text(harmless(job["why"], keep="\n")),
    ]


def _cell(value: object) -> Text:
    return Text("-" if value is None or value == "" else harmless(str(value)))
