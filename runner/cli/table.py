"""Tables as lines of text: one layout and one set of colours for all commands.

No line is wider than the screen. The last column takes the remaining width. Colours are the
eight basic SGR colours. The module is independent of jobs and devices.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from runner.cli.console import harmless, takes_escapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNLIMITED: Final = 1_000_000
"""The width of a table that is not cut or wrapped."""

LAST_COLUMN: Final = 16
"""The width that should be left to the last column of a table."""

STATE_COLOURS: Final = {
    "allocated": "32", "running": "32", "starting": "32", "succeeded": "32", "free": "", "preparing": "36",
    "stopping": "33", "held": "33", "cancelled": "33", "dirty": "33", "drained": "33",
    "failed": "31", "foreign": "31", "quarantined": "31",
}  # fmt: skip
"""The colour of each state of a job or a device."""

BOLD: Final = "1"
DIM: Final = "2"


class Style(NamedTuple):
    """The capabilities of a terminal."""

    colour: bool = False
    blocks: bool = False  # characters beyond ASCII


PLAIN: Final = Style()


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with its colour; numbers are aligned to the right."""

    text: str
    colour: str = ""
    right: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below the names of their columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0  # rows that exist and are not in ``rows``
    empty: str = ""  # the line printed instead of an empty table; if empty, the column names
    spare: tuple[str, ...] = ()  # columns that a narrow screen leaves out, in this order

    @property
    def height(self) -> int:
        """Return the number of lines of the whole table, if no cell is wrapped."""
        return len(self.rows) + 1 + (self.more > 0) if self.rows else 1

    def narrowed(self, width: int) -> Table:
        """Return the table without spare columns as far as the last column needs their room."""
        table = self
        for name in self.spare:
            widths = table.widths()
            if sum(each + 2 for each in widths[:-1]) + min(widths[-1], LAST_COLUMN) <= width:
                break
            table = table._without(table.columns.index(name))
        return table

    def widths(self) -> list[int]:
        """Return the width that each column needs."""
        return [
            max(text_width(column), *(text_width(row[number].text) for row in self.rows), 0)
            for number, column in enumerate(self.columns)
        ]

    def _without(self, number: int) -> Table:
        rows = tuple((*row[:number], *row[number + 1 :]) for row in self.rows)
        return replace(self, columns=(*self.columns[:number], *self.columns[number + 1 :]), rows=rows)


def make_table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], spare: Iterable[str] = (), empty: str = ""
) -> Table:
    """Return a table of values; a state has its colour, and a missing value is ``-``."""
    cells = tuple(tuple(make_cell(value) for value in row) for row in rows)
    return Table(tuple(columns), cells, spare=tuple(spare), empty=empty)


def make_cell(value: object, *, right: bool = False) -> Cell:
    """Return a value as a cell with terminal control characters escaped."""
    if isinstance(value, Cell):
        return value
    text = "-" if value is None or value == "" else harmless(str(value), keep="\n")
    return Cell(text, STATE_COLOURS.get(text, ""), right)


def print_table(table: Table) -> None:
    """Print a table on the terminal; the last cell of a row takes as many lines as it needs."""
    for line in format_table(table, terminal_width(), terminal_style(), wrap=True):
        click.echo(line)


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def terminal_style() -> Style:
    """Return the style that standard output can show."""
    colour = takes_escapes() and not os.environ.get("NO_COLOR")
    return Style(colour, (sys.stdout.encoding or "").lower().startswith("utf"))


def format_table(
    table: Table, width: int, style: Style = PLAIN, *, shown: int | None = None, wrap: bool = False
) -> list[str]:
    """Return the first ``shown`` rows of a table as lines; ``wrap``: the last cell may take several lines."""
    if not table.rows and table.empty:
        return [paint(cut(table.empty, width), DIM, style)]
    table = table.narrowed(width)
    rows = table.rows[:shown]
    widths = table.widths()
    right = [cell.right for cell in table.rows[0]] if table.rows else [False] * len(table.columns)
    head = tuple(Cell(column, BOLD, right=side) for column, side in zip(table.columns, right, strict=True))
    lines: list[str] = []
    for row in (head, *rows):
        parts = _wrap_row(row, widths, width) if wrap else [row]
        lines += [format_line(part, width, style, widths) for part in parts]
    left = len(table.rows) - len(rows) + table.more
    return [*lines, paint(cut(f"and {left} more", width), DIM, style)] if left > 0 else lines


def _wrap_row(row: tuple[Cell, ...], widths: Sequence[int], width: int) -> Iterator[tuple[Cell, ...]]:
    """Yield a row as several rows, each with a part of the last cell."""
    *first, last = row
    room = max(width - sum(each + 2 for each in widths[:-1]), 1)
    for number, text in enumerate(wrap_text(last.text, room)):
        cells = first if number == 0 else [Cell("") for _ in first]
        yield (*cells, replace(last, text=text))


def wrap_text(text: str, width: int) -> Iterator[str]:
    """Yield a text in lines of at most ``width`` columns, broken between words where that is possible."""
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if text_width(longer) <= width:
                line = longer
                continue
            if line:
                yield line
            line = word
            while text_width(line) > width and (part := cut(line, width)):
                yield part
                line = line[len(part) :]
        yield line


def format_line(row: Iterable[Cell], width: int, style: Style, widths: Sequence[int] | None = None) -> str:
    """Return cells as one line that ends at the edge of the screen."""
    cells, parts, left = list(row), [], width
    for number, cell in enumerate(cells):
        gap = "  " if number else ""
        text = cell.text
        if widths is not None and (cell.right or number < len(cells) - 1):
            pad = " " * (widths[number] - text_width(text))
            text = pad + text if cell.right else text + pad
        text = cut(gap + text, left)
        left -= text_width(text)
        parts.append(paint(text, cell.colour, style))
    return "".join(parts).rstrip()


def paint(text: str, colour: str, style: Style) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and style.colour and text.strip() else text


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that fits into ``width`` columns."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) > width:
        text = text[: max(len(text) - max((text_width(text) - width) // 2, 1), 0)]
    return text


def text_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_width(char) for char in text)


def _character_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
