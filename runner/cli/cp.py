"""``runner cp``: copy what a job has written."""

from __future__ import annotations

import os
import sys
import tarfile
from typing import TYPE_CHECKING, Final

import click

from runner.adapters.host.archive import LEFT_OUT
from runner.base.errors import Unavailable, UsageError
from runner.base.textfile import one_line
from runner.cli.console import complain, harmless
from runner.cli.copying import Copy, MemberLeftOut
from runner.cli.parameters import check_ref
from runner.client.client import find_or_start
from runner.client.http import query_string, quote_path

if TYPE_CHECKING:
    from runner.client.http import StreamedBody

STANDARD_OUTPUT: Final = "-"
TOP: Final = "."
INCOMPLETE: Final = 3
"""The exit code of a copy that lacks what could not be read, or would lead out of it."""


@click.command()
@click.argument("source", metavar="JOB:PATH")
@click.argument("destination", metavar="DEST", type=click.Path())
def cp(source: str, destination: str) -> None:
    """Copy a file or a directory of a job to DEST; links stay links.

    A relative PATH begins in the working directory of the program, /job/PATH in the run directory. The
    content of a PATH that is empty or ends with "/." is put into DEST; anything else keeps its name in
    a directory DEST. "-" writes a tar archive with the same names to standard output. The exit code is
    3 if something was left out, which is told.
    """
    job, colon, path = source.partition(":")
    if not colon:
        raise click.UsageError(f"{harmless(source)!r}: write JOB:PATH, for example train:out/model.pt")
    check_ref(click.get_current_context(), click.Argument(["source"]), job)
    client = find_or_start(complain)
    with client.stream(f"/v1/jobs/{quote_path(job)}/files{query_string({'path': path})}") as body:
        if destination == STANDARD_OUTPUT:
            whole = _write_archive(body, _name_of(path))
        else:
            whole = _extract(body, _open_place(path, destination))
    if not whole:
        click.get_current_context().exit(INCOMPLETE)


def _open_place(path: str, destination: str) -> Copy:
    """Return the copy at its place, which is made by the first member.

    Raises:
        UsageError: the directory for it is not there.
    """
    if os.path.isdir(destination):
        return Copy(destination, _name_of(path))
    parent, name = os.path.split(os.path.abspath(destination))
    if not os.path.isdir(parent):
        raise UsageError(f"{one_line(destination)}: there is no directory {one_line(parent)}; make it first")
    return Copy(parent, name, of_directory=destination.endswith("/"))


def _name_of(path: str) -> str:
    """Return the name that a copy of a path keeps; empty: its content has no directory around it."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name in {"", TOP, ".."} else name


def _write_archive(body: StreamedBody, name: str) -> bool:
    """Write an archive to standard output, whose top gets a name; return whether all could be read.

    Raises:
        Unavailable: the archive ends early.
    """
    whole = True
    try:
        with (
            tarfile.open(fileobj=body, mode="r|") as archive,  # type: ignore[call-overload]  # only read
            tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as written,
        ):
            for member in archive:
                member.name = (name or TOP) + member.name.removeprefix(TOP)
                fact, member.pax_headers = member.pax_headers.get(LEFT_OUT), {}
                if fact is None:
                    written.addfile(member, archive.extractfile(member) if member.isreg() else None)
                else:
                    whole = False
                    complain(f"{one_line(member.name)}: left out: cannot be read: {one_line(fact)}")
    except tarfile.ReadError as error:
        raise Unavailable(f"the archive is not complete ({error}); try again") from error
    sys.stdout.buffer.flush()
    return whole


def _extract(body: StreamedBody, copy: Copy) -> bool:
    """Extract an archive whose top becomes a copy; return whether nothing was left out.

    What would lead out of the copy is left out and told.

    Raises:
        Unavailable: the archive ends early.
        UsageError: the file system refuses it.
    """
    whole = True
    try:
        with copy, tarfile.open(fileobj=body, mode="r|") as archive:  # type: ignore[call-overload]  # only read
            for member in archive:
                try:
                    copy.add(archive, member)
                except MemberLeftOut as error:
                    whole = False
                    name = member.name.removeprefix(TOP).lstrip("/") or copy.name
                    complain(f"{one_line(name)}: left out: {error}")
    except tarfile.ReadError as error:
        raise Unavailable(f"{one_line(copy.place)}: the copy is not complete ({error}); try again") from error
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else copy.place
        raise UsageError(f"{one_line(where)}: {error.strerror or error}") from error
    return whole
