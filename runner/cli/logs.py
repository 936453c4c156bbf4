"""``runner logs``: print the output of programs.  Messages of the runner go to stderr."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from runner.base.errors import Refused
from runner.cli.choice import chosen_jobs, client_for
from runner.cli.console import complain, leave_with_reader
from runner.cli.formatting import without_counts
from runner.cli.job_output import JsonOutput, LineOutput, RawOutput
from runner.cli.parameters import as_json, count_from, perhaps_a_sweep, perhaps_jobs, time_ago
from runner.client.client import ChosenLog
from runner.client.log import LogReader

if TYPE_CHECKING:
    from runner.client.client import Client, LogChunk
    from runner.client.types import JobSummary

Output: TypeAlias = RawOutput | LineOutput | JsonOutput

TURN_S: Final = 0.5
"""Wait for the log of one of several jobs, before the others are looked at."""


def lines(ctx: click.Context, param: click.Parameter, given: str | None) -> int | None:
    """Return a number of lines; None for all of them."""
    return None if given == "all" else count_from(0)(ctx, param, given)


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print new output, of all attempts, until the job ends or is held.",
)
@click.option(
    "--attempt",
    callback=count_from(1),
    metavar="N",
    help="Print the log of attempt N instead of the newest.",
)
@click.option("-n", "--tail", callback=lines, metavar="N", help="Begin with the last N lines.")
@click.option(
    "--since",
    callback=time_ago,
    metavar="TIME",
    help="Begin with what was written since TIME: 10m (ago), or 2030-01-31T18:00:00+01:00.",
)
@click.option(
    "--rank",
    callback=count_from(0),
    metavar="R",
    help="Print the log of one of several processes; the first one, 0, writes the log of the attempt.",
)
@click.option("--build", is_flag=True, help="Print the log of the image build instead.")
@click.option("--raw", is_flag=True, help="Print every byte unchanged, also what a progress bar overwrites.")
@as_json
def logs(  # noqa: PLR0913  one per option
    jobs: tuple[str, ...],
    *,
    sweep: str | None,
    follow: bool,
    attempt: int | None,
    tail: int | None,
    since: float | None,
    rank: int | None,
    build: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Print what jobs wrote to standard output and standard error.

    Of a progress bar, the last state is printed. Of several jobs, each line follows the name of its
    job. Notes go to standard error. --since is right within some seconds.
    """
    if build and (attempt or tail is not None or since is not None or rank is not None):
        raise click.UsageError("--build goes with none of --attempt, --tail, --since and --rank")
    if rank and since is not None:
        raise click.UsageError("--since goes with --rank 0 alone: the other logs have no times")
    if raw and as_json:
        raise click.UsageError("--raw goes without --json, which holds text and not bytes")
    client = client_for(jobs, sweep)
    found = chosen_jobs(client, jobs, sweep)
    if raw and len(found) > 1:
        raise click.UsageError("--raw prints the log of one job")
    if follow:
        leave_with_reader()
        client = client.following()
    chosen = ChosenLog("build" if build else "job", attempt, tail, since, rank)
    if len(found) > 1:
        following = _of_several(client, found, chosen, follow=follow, as_json=as_json)
    else:
        output: Output = RawOutput() if raw else JsonOutput() if as_json else LineOutput(live=follow)
        ref = jobs[0] if jobs else found[0]["id"]
        following = [JobLog(client, ref, chosen, output, follow=follow)]
    print_logs(following)


def _of_several(
    client: Client, jobs: list[JobSummary], chosen: ChosenLog, *, follow: bool, as_json: bool
) -> list[JobLog]:
    """Return the logs of several jobs, whose lines tell which job they are of."""
    names = [job["name"] for job in jobs]
    shown = [each["name"] if names.count(each["name"]) == 1 else each["id"] for each in jobs]
    width = max(map(len, shown))
    return [
        JobLog(
            client,
            job["id"],
            chosen,
            JsonOutput(job["id"]) if as_json else LineOutput(f"{name:{width}} | "),
            follow=follow,
        )
        for job, name in zip(jobs, shown, strict=True)
    ]


def print_logs(following: list[JobLog]) -> None:
    """Print logs to their ends; new output of several as it comes."""
    if len(following) == 1 or not following[0].follow:
        for each in following:
            while not each.reader.is_over:
                each.print_next(each.reader.wait_s)
        return
    for turn in cycle(range(len(following))):
        left = [each for each in following if not each.reader.is_over]
        if not left:
            return
        for number, each in enumerate(left):
            # One of them is waited for, each in its turn, so that nobody asks all the time.
            each.print_next(min(each.reader.wait_s, TURN_S) if number == turn % len(left) else 0.0)


class JobLog:
    """The log of one job that is printed, and what was told about it."""

    def __init__(self, client: Client, ref: str, chosen: ChosenLog, output: Output, *, follow: bool) -> None:
        self.reader = LogReader(client, ref, chosen, follow=follow)
        self.follow = follow
        self._client = client
        self._ref = ref
        self._chosen = chosen
        self._output = output
        self._shown = chosen.attempt
        self._told = ""
        self._empty = True

    def print_next(self, wait_s: float) -> None:
        """Print the next piece, and at the end of the log what explains it."""
        piece = self.reader.read(wait_s)
        of_job = self._chosen.part == "job"
        if of_job and (self.follow or piece.attempt is None) and _waits(piece, self._chosen.attempt):
            self._told = _tell_wait(self._client, self._ref, self._told, piece.attempt)
        if self.follow and self._shown is not None and piece.attempt != self._shown:
            self._output.end()
            complain(f"--- {self._ref}: attempt {piece.attempt} ---")
        self._shown, self._empty = piece.attempt, self._empty and not piece.body and piece.cut is None
        self._output.write(piece)
        if not self.reader.is_over:
            return
        self._output.end()
        if self.follow and of_job and not self._chosen.attempt:
            _tell_end(self._client.job(self._ref), self._ref)
        elif self._empty and of_job and not self._told:
            _tell_empty(self._client, self._ref, self._shown)


def _tell_end(job: JobSummary, ref: str) -> None:
    """Print the outcome of a job that did not succeed, or that a job is held."""
    if job["state"] == "held":
        complain(f"{ref}: is held; runner release {ref} lets it go on, and runner policy explain says why")
    elif job["outcome"] not in {None, "succeeded"}:
        from runner.cli.formatting import state_line

        complain(state_line(job))


def _tell_empty(client: Client, ref: str, number: int | None) -> None:
    """Print that no attempt, or not the requested one, was started; print nothing for an empty log.

    Raises:
        Refused: the requested one is the next, and has not begun.
    """
    if number is None:
        complain(f"{ref}: no attempt was started, so nothing was written; runner show {ref} says why")
        return
    attempts = client.job(ref)["attempts"]
    if all(attempt["number"] != number for attempt in attempts):
        there = ", ".join(str(attempt["number"]) for attempt in attempts) or "none"
        raise Refused(f"{ref}: there is no attempt {number} yet; there are {there}")
    for attempt in attempts:
        began = attempt["launched_at"] or attempt["exit_code"] is not None  # an exit code also shows a start
        if attempt["number"] == number and attempt["ended_at"] and not began:
            why = attempt["message"] or attempt["cause"] or f"runner show {ref} says why"
            complain(f"{ref}: attempt {number} was never started, so nothing was written: {why}")


def _waits(piece: LogChunk, asked: int | None) -> bool:
    """Return True if no output can come until the first or the next attempt begins."""
    if piece.attempt is None:
        return True
    done = piece.attempt_ended and not piece.body and piece.next_attempt is None
    return done and not piece.job_ended and asked is None


def _tell_wait(client: Client, ref: str, told: str, attempt: int | None) -> str:
    """Print the pending reason of a job unless it was printed last, and return it.

    A changed estimate or countdown alone is not printed again.
    """
    answer = client.why(ref)
    why = str(answer["why"]) if answer["state"] in {"queued", "preparing"} else ""
    if not why or without_counts(why) == without_counts(told):
        return told
    so_far = "has not started" if attempt is None else f"attempt {attempt} has ended, the next has not begun"
    complain(f"{answer['name']}: {so_far}: {why}; runner cancel {answer['job']} ends it")
    return why
