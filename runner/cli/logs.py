"""``runner logs``: print the output of a job's program.

The bytes go to stdout unchanged, escape sequences included, as with ``cat``.  Messages of the runner go
to stderr.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from runner.cli.console import complain, leave_with_reader, say_json
from runner.cli.job_output import write_piece
from runner.cli.parameters import as_json, count_from, the_job, time_ago
from runner.client.client import Client, LogChunk, find_or_start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.client.types import JobSummary

WAIT_S: Final = 5.0  # longest wait of one request; also the delay until a new attempt is noticed
_NUMBERS: Final = re.compile("[0-9]+")


@click.command()
@the_job
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
@click.option("--tail", callback=count_from(0), metavar="N", help="Begin with the last N lines.")
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
@as_json
def logs(  # noqa: PLR0913  one per option
    job: str,
    *,
    follow: bool,
    attempt: int | None,
    tail: int | None,
    since: float | None,
    rank: int | None,
    build: bool,
    as_json: bool,
) -> None:
    """Print what a job wrote to standard output and standard error.

    The bytes are printed unchanged, escape sequences included. Notes, for example where the log quota
    removed a part, go to standard error. Programs write no times: --since is right within some seconds.
    """
    if build and (attempt or tail is not None or since is not None or rank is not None):
        raise click.UsageError("--build goes with none of --attempt, --tail, --since and --rank")
    if rank and since is not None:
        raise click.UsageError("--since goes with --rank 0 alone: the other logs have no times")
    client = find_or_start(complain)
    if follow:
        leave_with_reader()
        client = client.following()
    shown, told, empty = attempt, "", True
    chosen = ChosenLog("build" if build else "job", attempt, tail, since, rank)
    for piece in pieces(client, job, chosen, follow=follow):
        if not build and (follow or piece.attempt is None) and _waits(piece, attempt):
            told = _tell_wait(client, job, told, piece.attempt)
        if follow and shown is not None and piece.attempt != shown:
            complain(f"--- attempt {piece.attempt} ---")
        shown, empty = piece.attempt, empty and not piece.body and piece.cut is None
        if as_json:
            _print_json(piece)
        else:
            write_piece(piece)
    if follow and not build and not attempt:
        _tell_end(client.job(job), job)
    elif empty and not build and not told:
        _tell_empty(client, job, shown)


class ChosenLog(NamedTuple):
    """The log that is to be printed, and where it begins."""

    part: str = "job"
    attempt: int | None = None  # None: the newest
    tail: int | None = None  # lines
    since_s: float | None = None  # Unix time
    rank: int | None = None  # None: the first process


def pieces(client: Client, ref: str, chosen: ChosenLog, *, follow: bool = False) -> Iterator[LogChunk]:
    """Yield a log in pieces; with ``follow`` all attempts in turn, until the job ends or is held."""
    part, attempt, tail, since_s, rank = chosen
    stay, offset, wait_s, ended = attempt is not None or part == "build", 0, 0.0, False
    while True:
        piece = client.log(
            ref,
            attempt=attempt,
            offset=offset,
            wait_s=wait_s,
            part=part,
            tail=tail,
            since_s=since_s,
            rank=rank,
        )
        yield piece
        if piece.attempt is not None:
            tail = since_s = None  # the offset of the answer takes their place
        attempt, wait_s = piece.attempt, 0.0
        if piece.next_offset > offset:
            offset = piece.next_offset
        elif not follow:
            return
        elif piece.attempt_ended and not ended:
            ended = True  # read once more: the last bytes may have come after the read
        elif piece.attempt_ended and piece.next_attempt is not None and not stay:
            attempt, offset, ended = piece.next_attempt, 0, False
        elif piece.job_ended or (piece.attempt_ended and stay):
            return
        else:
            wait_s = WAIT_S


def _tell_end(job: JobSummary, ref: str) -> None:
    """Print the outcome of a job that did not succeed, or that a job is held."""
    if job["state"] == "held":
        complain(f"{ref}: is held; runner release {ref} lets it go on, and runner policy explain says why")
    elif job["outcome"] not in {None, "succeeded"}:
        from runner.cli.formatting import state_line  # noqa: PLC0415  most logs are not followed to such an end

        complain(state_line(job))


def _tell_empty(client: Client, ref: str, number: int | None) -> None:
    """Print that no attempt, or not the requested one, was started; print nothing for an empty log."""
    if number is None:
        complain(f"{ref}: no attempt was started, so nothing was written; runner show {ref} says why")
        return
    for attempt in client.job(ref)["attempts"]:
        began = attempt["launched_at"] or attempt["exit_code"] is not None  # an exit code also shows a start
        if attempt["number"] == number and attempt["ended_at"] and not began:
            why = attempt["message"] or attempt["cause"] or f"runner show {ref} says why"
            complain(f"{ref}: attempt {number} was never started, so nothing was written: {why}")


def _waits(piece: LogChunk, asked: int | None) -> bool:
    """Return whether no output can come until the first or the next attempt begins."""
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
    if not why or _NUMBERS.sub("", why) == _NUMBERS.sub("", told):
        return told
    so_far = "has not started" if attempt is None else f"attempt {attempt} has ended, the next has not begun"
    complain(f"{answer['name']}: {so_far}: {why}; runner cancel {answer['job']} ends it")
    return why


def _print_json(piece: LogChunk) -> None:
    if piece.body:
        text = piece.body.decode(errors="replace")
        say_json({"attempt": piece.attempt, "offset": piece.offset, "cut": piece.cut, "text": text})
