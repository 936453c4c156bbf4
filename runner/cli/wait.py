"""``runner wait``: wait until jobs have ended, and exit with the code for their outcome."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from runner.cli import formatting
from runner.cli.choice import chosen_jobs, client_for
from runner.cli.console import complain, say, say_json
from runner.cli.failure import complain_of_failure
from runner.cli.parameters import as_json, perhaps_a_sweep, perhaps_jobs, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.client.client import Client
    from runner.client.types import JobDetail

FIRST_LOOK_S: Final = 1.0  # of the first request, so that a job that cannot start is reported soon
LOOK_S: Final = 30.0  # of each later request
TIMED_OUT: Final = 124
OVERTAKEN: Final = "cancelled by its sweep"
"""The end of a candidate that was not among the best: no failure of a sweep in which another succeeded."""


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@click.option(
    "--timeout",
    callback=seconds,
    metavar="DURATION",
    help="Exit with 124 after this time (90m, 2h30m; 90 is seconds).",
)
@as_json
def wait(jobs: tuple[str, ...], *, sweep: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait until each JOB is finished or held, and exit with its outcome.

    With several jobs, the exit code is the first one that is not 0. A job that cannot start at present
    is waited for; the reason goes to standard error. So is a candidate that its sweep has paused, unless
    the sweep waits for one that is held; one that its sweep cancels counts as 0 if another succeeds.
    """
    client = client_for(jobs, sweep)
    deadline = None if timeout is None else time.monotonic() + timeout
    patient = client.following(deadline)
    ids = [job["id"] for job in chosen_jobs(patient, jobs, sweep)]  # all, before waiting for the first
    ends = [tell_end(client, job_id, as_json=as_json, deadline=deadline) for job_id in ids]
    click.get_current_context().exit(next((code for code in exit_codes(ends) if code), 0))


def exit_codes(ends: Sequence[tuple[int, JobDetail]]) -> list[int]:
    """Return the exit codes of jobs, without those of candidates that were not among the best of their sweep.

    If none of a sweep's has succeeded, all count.
    """
    won = {_sweep_of(job) for _, job in ends if job["outcome"] == "succeeded"} - {None}
    return [code for code, job in ends if not (job["why"] == OVERTAKEN and _sweep_of(job) in won)]


def _sweep_of(job: JobDetail) -> str | None:
    sweep = (job["revision"] or {}).get("sweep")
    return sweep["id"] if sweep else None


def tell_end(
    client: Client, ref: str, *, as_json: bool, deadline: float | None = None
) -> tuple[int, JobDetail]:
    """Print the outcome of a job; return its exit code, 124 if ``deadline`` came first, and the job."""
    done, job = await_end(client, ref, deadline)
    if as_json:
        say_json(job)
    else:
        say(formatting.end_line(job) if done else f"{formatting.state_line(job)}; still, after --timeout")
        complain_of_failure(client, job)
    if done and job["state"] == "held" and job["why"].startswith("paused at "):  # that would go on by itself
        complain(f"{job['name']}: {client.why(job['id'])['why']}")
    return (formatting.exit_code(job) if done else TIMED_OUT), job


def await_end(client: Client, ref: str, deadline: float | None) -> tuple[bool, JobDetail]:
    """Return (has the job ended, the job) when it has, or at ``deadline`` (of ``time.monotonic``)."""
    client, look_s, told = client.following(deadline), FIRST_LOOK_S, ""
    while True:
        left = look_s if deadline is None else min(deadline - time.monotonic(), look_s)
        done, job = client.wait(ref, max(left, 0.0))
        if done or left <= 0:
            return done, job
        look_s, told = min(2 * look_s, LOOK_S), _tell_never(client, job, told)


def _tell_never(client: Client, job: JobDetail, told: str) -> str:
    """Print the reason why a job cannot start, unless it was printed last, and return it."""
    if job["state"] != "queued":
        return ""
    answer = client.why(job["id"])
    why = str(answer["why"]) if answer["never"] else ""
    if why not in {"", told}:
        complain(f"{job['name']}: {why}; waits on, as that may change: runner cancel {job['id']} ends it")
    return why
