"""The jobs that a command is for: by name or id, or all of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.client.http import ErrorResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.client.client import Client
    from runner.client.types import JobSummary


def chosen_jobs(client: Client, refs: Sequence[str], sweep: str | None = None) -> list[JobSummary]:
    """Return each job once, in order; the name of a matrix stands for all of its jobs.

    Raises:
        ErrorResponse: one of them is unknown.
        click.UsageError: neither jobs nor a matrix are given, or both.
    """
    if bool(refs) == bool(sweep):
        raise click.UsageError("give JOBs or --sweep, one of them")
    found = client.sweep(sweep) if sweep else [job for ref in refs for job in _named(client, ref)]
    return list({job["id"]: job for job in found}.values())


def _named(client: Client, ref: str) -> Sequence[JobSummary]:
    """Return a job, or all jobs of a matrix."""
    try:
        return [client.job(ref)]
    except ErrorResponse as unknown:
        if unknown.kind != "not_found":
            raise
        try:
            return client.sweep(ref)
        except ErrorResponse:
            raise unknown from None
