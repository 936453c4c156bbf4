"""How commands speak: results on stdout, everything about them on stderr, JSON one object per line."""

import os
import sys
from typing import Final, TextIO

import click

from runner.base.errors import RunnerError
from runner.client.http import ErrorResponse

INTERRUPTED: Final = 130  # exit code, as a shell reports SIGINT
READER_GONE: Final = 141  # the same, of SIGPIPE


def complain(*lines: str) -> None:
    """Print lines for the user on stderr, harmless to a terminal whoever wrote them.

    Where that cannot be written, the exit code has to say it alone.
    """
    try:
        for line in lines:
            click.echo(harmless(line), err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Point a stream away from what cannot be written, which Python would complain about at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def complain_of(error: RunnerError) -> int:
    """Print what went wrong, and return the exit code that stands for it."""
    complain(*str(error).splitlines())
    return error.code if isinstance(error, ErrorResponse) else error.exit_code


def say(text: str) -> None:
    """Print a line of a result, or several."""
    click.echo(harmless(text, keep="\t\n"))


def say_json(answer: object) -> None:
    """Print one object on one line."""
    import json  # noqa: PLC0415  not every command needs it

    click.echo(json.dumps(answer, separators=(",", ":")))


def say_row(*cells: object) -> None:
    """Print one line of cells between tabs; a missing one is ``-``."""
    click.echo("\t".join("-" if cell is None or cell == "" else harmless(str(cell)) for cell in cells))


def leave_with_reader() -> None:
    """End this command as soon as nobody reads what it prints: one that waits for news would not notice."""
    import select  # noqa: PLC0415  only who follows something needs these
    from stat import S_ISFIFO  # noqa: PLC0415
    from threading import Thread  # noqa: PLC0415

    output = sys.__stdout__
    if output is None or output is not sys.stdout or not S_ISFIFO(os.fstat(output.fileno()).st_mode):
        return
    reader = select.poll()
    reader.register(output.fileno(), 0)  # of a pipe: that the other end is closed, and nothing else

    def watch() -> None:
        reader.poll()
        os._exit(READER_GONE)

    Thread(target=watch, name="reader", daemon=True).start()


def on_terminal() -> bool:
    return sys.stdout.isatty()


def takes_escapes() -> bool:
    """Return whether standard output is a terminal that is known to do more than to print lines."""
    return on_terminal() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}


def harmless(text: str, keep: str = "") -> str:
    """Return ``text`` with every character spelt out that could move a cursor or change a direction."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
