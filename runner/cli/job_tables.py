"""The tables of ``runner list`` and ``runner show`` on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from runner.cli import formatting
from runner.cli.console import harmless
from runner.cli.list_options import cells
from runner.cli.table import (
    BOLD,
    PLAIN,
    STATE_COLOURS,
    UNLIMITED,
    Cell,
    Style,
    Table,
    format_line,
    format_table,
    make_table,
    print_table,
    terminal_style,
    terminal_width,
    wrap_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from runner.client.types import JobDetail, JobSummary

NARROWEST_VERDICT: Final = 30
"""Characters of a column of verdicts; where there are fewer, verdicts are below the rows."""

LONGEST_END: Final = 100
"""Characters of the reason why a job has ended; ``runner show`` has all of it."""

COLUMNS: Final = ("JOB", "NAME", "OWNER", "STATE", "TRY", "STEP", "SINCE", "WHY")
SPARE: Final = ("TRY", "STEP", "SINCE", "OWNER", "NAME")
"""Columns of ``runner list`` that a narrow screen leaves out, in this order."""


def print_jobs(jobs: Sequence[JobSummary], now: float, chosen: tuple[str, ...] = ()) -> None:
    """Print one row for each job."""
    print_table(make_job_table(jobs, now, chosen))


def make_job_table(jobs: Sequence[JobSummary], now: float, chosen: tuple[str, ...] = ()) -> Table:
    """Return the table of ``runner list``, or one with chosen columns."""
    if chosen:
        rows = [
            tuple("-" if cell in {None, ""} else cell for cell in cells(job, chosen, now)) for job in jobs
        ]
        return make_table([name.upper() for name in chosen], rows)
    return make_table(COLUMNS, [_job_cells(job, now) for job in jobs], SPARE)


def print_job(job: JobDetail, now: float) -> None:
    """Print the facts about one job, and its attempts."""
    for line in format_job(job, now, terminal_width(), terminal_style()):
        click.echo(line)


def format_job(job: JobDetail, now: float, width: int, style: Style = PLAIN) -> list[str]:
    """Return the facts about a job as lines, and below them the table of its attempts."""
    facts = formatting.facts(job)
    indent = max(len(name) for name, _ in facts)
    lines = []
    for name, value in facts:
        text = str(value)
        if name in {"since", "submitted"}:
            text += f" ({formatting.age(text, now)} ago)"
        name_cell, colour = Cell(name, BOLD), STATE_COLOURS.get(text, "")
        for part in wrap_text(harmless(text), max(width - indent - 2, 1)):
            lines.append(format_line((name_cell, Cell(part, colour)), width, style, (indent, 0)))
            name_cell = Cell("")
    if job["attempts"]:
        lines += ["", *_format_attempts(job, width, style)]
    if operators := [tuple(map(str, row)) for row in formatting.operator_rows(job)]:
        columns = [name.upper().replace("_", " ") for name in formatting.OPERATOR_COLUMNS]
        lines += ["", *format_table(make_table(columns, operators), width, style)]
    return lines


def _format_attempts(job: JobDetail, width: int, style: Style) -> list[str]:
    """Return the table of a job's attempts; where it is narrow, each verdict has lines of its own."""
    short = make_attempt_table(job, without={"placed", "verdict"})
    if max(map(len, format_table(short, UNLIMITED))) + 2 + NARROWEST_VERDICT <= width:
        return format_table(make_attempt_table(job), width, style, wrap=True)
    head, *rows = format_table(short, width, style)
    lines = [head]
    for row, attempt in zip(rows, job["attempts"], strict=True):
        verdict = wrap_text(harmless(attempt["verdict"] or ""), max(width - 2, 1))
        lines += [row, *(f"  {part}" for part in verdict if part)]
    return lines


def make_attempt_table(job: JobDetail, without: Collection[str] = ("placed",)) -> Table:
    """Return a table with one row per attempt, by default without the placement time."""
    kept = [number for number, name in enumerate(formatting.ATTEMPT_COLUMNS) if name not in without]
    columns = [formatting.ATTEMPT_COLUMNS[number].replace("_", " ").upper() for number in kept]
    attempts = [formatting.attempt_cells(attempt) for attempt in job["attempts"]]
    return make_table(columns, [[cells[number] for number in kept] for cells in attempts])


def _job_cells(job: JobSummary, now: float) -> tuple[object, ...]:
    return (
        job["id"],
        job["name"],
        job["owner"],
        formatting.state_word(job),
        job["attempt"],
        formatting.progress_share(job),
        formatting.age(job["since"], now),
        Cell(_short_reason(job)),
    )


def _short_reason(job: JobSummary) -> str:
    """Return the reason why a job waits, or the beginning of that for its end."""
    why = harmless(job["why"], keep="\n")
    line = why.partition("\n")[0]
    if job["outcome"] is None:
        return why
    return line if len(line) <= LONGEST_END else f"{line[:LONGEST_END].rstrip()} ..."
