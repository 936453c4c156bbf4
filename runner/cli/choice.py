"""The jobs that a command is for, by name or id or all of a matrix; and one request for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.base.errors import RunnerError, Unavailable, UsageError
from runner.cli.console import complain, complain_of
from runner.client.client import find_or_start
from runner.client.http import ErrorResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runner.client.client import Client
    from runner.client.types import JobSummary


def every_job(_job: JobSummary) -> bool:
    """Return True."""
    return True


def client_for(refs: Sequence[str], sweep: str | None) -> Client:
    """Return a client; unless either jobs or a matrix are given, no daemon is started to say so."""
    if bool(refs) == bool(sweep):
        raise click.UsageError("give JOBs or --sweep, one of them")
    return find_or_start(complain)


def chosen_jobs(client: Client, refs: Sequence[str], sweep: str | None = None) -> list[JobSummary]:
    """Return each job once, in order; the name of a matrix stands for all of its jobs.

    Raises:
        ErrorResponse: one of them is unknown.
    """
    found = client.sweep(sweep) if sweep else _named(client, refs)
    return list({job["id"]: job for job in found}.values())


def _named(client: Client, refs: Sequence[str]) -> Iterator[JobSummary]:
    for ref in refs:
        try:
            yield client.job(ref)
        except ErrorResponse as unknown:
            if not (members := _members(client, ref, unknown)):
                raise
            yield from members


def for_each(  # noqa: PLR0913  the choice of jobs, and the request
    client: Client,
    refs: Sequence[str],
    sweep: str | None,
    ask: Callable[[str], dict[str, Any]],
    *,
    tell: Callable[[dict[str, Any]], None],
    of_matrix: Callable[[JobSummary], bool] = every_job,
) -> None:
    """Ask for the same of several jobs, continuing after errors; exit with the first code that is not 0."""
    codes, left = [], list(refs)
    if sweep:
        jobs = client.sweep(sweep)
        if not (left := [job["id"] for job in jobs if of_matrix(job)]):
            raise _none_of(sweep, len(jobs))
    while left:
        ref = left.pop(0)
        try:
            tell(ask(ref))
        except Unavailable as error:  # the other jobs would fail in the same way
            raise Unavailable(f"{error}{f'; {len(left)} more were not asked for' if left else ''}") from error
        except RunnerError as error:
            members = _members(client, ref, error)
            codes += [] if members else [complain_of(error)]
            wanted = [job["id"] for job in members if of_matrix(job)]
            left[:0] = wanted
            if members and not wanted:
                codes.append(complain_of(_none_of(ref, len(members))))
    click.get_current_context().exit(next((code for code in codes if code), 0))


def _members(client: Client, ref: str, error: RunnerError) -> Sequence[JobSummary]:
    """Return the jobs of a matrix if an error says that no job has its name."""
    if not isinstance(error, ErrorResponse) or error.kind != "not_found":
        return ()
    try:
        return client.sweep(ref)
    except ErrorResponse:
        return ()


def _none_of(sweep: str, count: int) -> UsageError:
    return UsageError(f"{sweep}: none of the {count} jobs of this matrix; runner list --sweep {sweep}")
