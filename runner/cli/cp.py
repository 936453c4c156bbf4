"""``runner cp``: copy what a job has written."""

from __future__ import annotations

import os
import sys
import tarfile
from typing import TYPE_CHECKING, Final

import click

from runner.base.errors import Unavailable, UsageError
from runner.base.textfile import one_line
from runner.cli.console import complain, harmless
from runner.cli.parameters import check_ref
from runner.client.client import find_or_start
from runner.client.http import query_string, quote_path

if TYPE_CHECKING:
    from runner.client.http import StreamedBody

STANDARD_OUTPUT: Final = "-"
TOP: Final = "."
PART_BYTES: Final = 1024 * 1024


@click.command()
@click.argument("source", metavar="JOB:PATH")
@click.argument("destination", metavar="DEST", type=click.Path())
def cp(source: str, destination: str) -> None:
    """Copy a file or a directory of a job to DEST; links stay links.

    A relative PATH begins in the working directory of the program, /job/PATH in the run directory of the
    job. If DEST is a directory, the copy is put into it under its own name; of an empty PATH, which is the
    whole working directory, and of one that ends with "/.", the content is put there. "-" writes a tar
    archive to standard output. A job that runs may be copied from.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UsageError("runner cp: needs Python 3.11.4 or newer, whose tarfile has filters")
    job, colon, path = source.partition(":")
    if not colon:
        raise click.UsageError(f"{harmless(source)!r}: write JOB:PATH, for example train:out/model.pt")
    check_ref(click.get_current_context(), click.Argument(["source"]), job)
    client = find_or_start(complain)
    with client.stream(f"/v1/jobs/{quote_path(job)}/files{query_string({'path': path})}") as body:
        if destination == STANDARD_OUTPUT:
            _write_archive(body)
        else:
            _extract(body, _place(path or TOP, destination))


def _place(path: str, destination: str) -> str:
    """Return where the copy comes to lie.

    Raises:
        UsageError: the directory for it is not there.
    """
    name = path.rstrip("/").rpartition("/")[2]
    place = os.path.join(destination, name) if os.path.isdir(destination) else destination  # noqa: PTH112, PTH118
    parent = os.path.dirname(os.path.abspath(place))  # noqa: PTH100, PTH120
    if not os.path.isdir(parent):  # noqa: PTH112
        raise UsageError(f"{one_line(destination)}: there is no directory {one_line(parent)}; make it first")
    return os.path.abspath(place)  # noqa: PTH100


def _write_archive(body: StreamedBody) -> None:
    for part in iter(lambda: body.read(PART_BYTES), b""):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def _extract(body: StreamedBody, place: str) -> None:
    """Extract an archive whose top becomes ``place``; what would lead out of it is left out and told.

    Raises:
        Unavailable: the archive ends early.
    """
    parent, name = os.path.split(place)
    try:
        with tarfile.open(fileobj=body, mode="r|") as archive:  # type: ignore[call-overload]  # it is only read
            for member in archive:
                if (kept := _renamed(member, parent, name)) is not None:
                    archive.extract(kept, parent, set_attrs=True, filter="fully_trusted")
    except tarfile.ReadError as error:
        raise Unavailable(f"{one_line(place)}: the copy is not complete ({error}); try again") from error
    except OSError as error:
        raise UsageError(f"{one_line(error.filename or place)}: {error.strerror or error}") from error


def _renamed(member: tarfile.TarInfo, parent: str, name: str) -> tarfile.TarInfo | None:
    """Return a member under its new name, with the safe part of its attributes; None if it would lead out."""
    below = member.name.removeprefix(TOP).lstrip("/")
    try:
        safe = tarfile.data_filter(
            member.replace(name=f"{name}/{below}" if below else name, deep=False), parent
        )
    except tarfile.FilterError as error:
        complain(f"{one_line(below or name)}: left out: {one_line(str(error))}")
        return None
    return safe
