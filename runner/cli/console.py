"""Output of commands: results on stdout, messages on stderr, JSON as one object per line."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import click

from runner.base.errors import RunnerError
from runner.client.http import ErrorResponse

INTERRUPTED: Final = 130  # exit code, as a shell reports SIGINT
READER_GONE: Final = 141  # the same for SIGPIPE
TERMINAL_GONE: Final = 129  # the same for SIGHUP


def complain(*lines: str) -> None:
    """Print messages on stderr, with terminal control characters escaped.

    If stderr cannot be written, the message is dropped and only the exit code remains.
    """
    try:
        for line in lines:
            click.echo(harmless(line, keep="\t"), err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream that cannot be written, so that Python does not report an error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain_of(error: RunnerError, *, verbose: bool = False) -> int:
    """Print an error, with ``verbose`` also all that is known of its reason, and return its exit code."""
    complain(*str(error).splitlines())
    if verbose:
        complain(*(f"  {line}" for line in error.details.splitlines()))
    return error.code if isinstance(error, ErrorResponse) else error.exit_code


@contextmanager
def details_told(*, verbose: bool) -> Iterator[None]:
    """End the command at an error with all that is known of its reason, if ``verbose``."""
    try:
        yield
    except RunnerError as error:
        if not (verbose and error.details):
            raise
        click.get_current_context().exit(complain_of(error, verbose=True))


def say(text: str) -> None:
    """Print one or more lines of a result."""
    click.echo(harmless(text, keep="\t\n"))


def say_json(answer: object) -> None:
    """Print one object on one line."""
    import json

    click.echo(json.dumps(answer, separators=(",", ":")))


def say_row(*cells: object) -> None:
    """Print one line of tab-separated cells; a missing value is ``-``."""
    click.echo("\t".join("-" if cell is None or cell == "" else harmless(str(cell)) for cell in cells))


def say_answer(answer: object, line: str, *, as_json: bool) -> None:
    """Print an answer as JSON, or the line that says the same."""
    if as_json:
        say_json(answer)
    else:
        say(line)


def say_table(  # noqa: PLR0913  the same rows in three forms
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    plain: Iterable[Iterable[object]] | None = None,
    spare: Iterable[str] = (),
    empty: str = "",
    *,
    objects: Iterable[object] | None = None,
) -> None:
    """Print rows as a table on a terminal, else between tabs; ``plain`` ones there, or JSON ``objects``."""
    if objects is not None:
        for each in objects:
            say_json(each)
    elif not on_terminal():
        for row in rows if plain is None else plain:
            say_row(*row)
    else:
        from runner.cli.table import make_table, print_table

        print_table(make_table(columns, rows, spare, empty))


def leave_with_reader() -> None:
    """End this command when the reader of its output exits; a waiting command would not notice otherwise.

    A terminal that closes sends SIGHUP, but that may be ignored, as by ``nohup``.
    """
    import select
    from stat import S_ISFIFO
    from threading import Thread

    output = sys.__stdout__
    if output is None or output is not sys.stdout:
        return
    is_pipe = S_ISFIFO(os.fstat(output.fileno()).st_mode)
    if not (is_pipe or output.isatty()):
        return
    reader = select.poll()
    reader.register(output.fileno(), 0)  # reports only that the other end is closed

    def watch() -> None:
        reader.poll()
        os._exit(READER_GONE if is_pipe else TERMINAL_GONE)

    Thread(target=watch, name="reader", daemon=True).start()


def on_terminal() -> bool:
    return sys.stdout.isatty()


def takes_escapes() -> bool:
    """Return True if standard output is a terminal that supports escape sequences."""
    return on_terminal() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def harmless(text: str, keep: str = "") -> str:
    """Return ``text`` with the characters escaped that could move the cursor or change the text direction."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
