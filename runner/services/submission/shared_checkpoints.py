"""Warnings about jobs that write their checkpoints to the same files of a mount.

Each of them may go on from a checkpoint of the other, and neither can tell.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from runner.agent.attempts.checkpoints import program_files
from runner.base.textfile import one_line
from runner.core.job.states import Finished
from runner.core.ports.store import JobRow
from runner.files.revision import Revision, cached_by_revision
from runner.services.submission.dependencies import dependency_graph

_BRACES: Final = re.compile(r"\{[^{}]*\}")

MOST_JOBS: Final = 100
"""Jobs that are compared, the newest; to compare patterns takes the daemon's own time."""

MOST_PLACES: Final = 4
"""Different patterns of one submission that are compared with those of other jobs."""


def shared_checkpoints(rows: Sequence[JobRow], tracked: Iterable[JobRow]) -> Iterator[str]:
    """Yield a line for jobs of one submission that share checkpoints with each other, or with others.

    ``tracked`` are all jobs that may not have ended.  One that the new job waits for may leave it its files.
    """
    place = _place(rows[0].text)
    if not place:
        return
    places = [_place(row.text) for row in rows]
    is_one_by_one = (_at_a_time(rows[0].text) or len(rows)) == 1
    if len(set(places)) < len(places) and not is_one_by_one:
        yield _warning(f"several jobs of the matrix write their checkpoints to {one_line(place)}", "")
    known = {row.job.id: row for row in tracked}

    def waits_for(job_id: str) -> tuple[str, ...]:
        return _after(known[job_id].text) if job_id in known else ()

    own = {row.job.id for row in rows} | dependency_graph("", _after(rows[0].text), waits_for).keys()
    newest = islice(_living(reversed(known.values()), rows[0].owner.uid, own), MOST_JOBS)
    compared = list(dict.fromkeys(places))[:MOST_PLACES]
    found = [row.job.id for row in newest if any(may_meet(each, _place(row.text)) for each in compared)][::-1]
    if found:
        more = f" and {len(found) - 1} more" if found[1:] else ""
        fact = f"job {found[0]}{more}, not ended yet, writes checkpoints to the same files, {one_line(place)}"
        yield _warning(fact, f", or let this one wait (queue.after: {found[0]})")


def _warning(fact: str, otherwise: str) -> str:
    step = f"give each a directory of its own{otherwise}"
    return f"checkpoint.files: {fact}; one may go on from what the other has saved: {step}"


def _living(rows: Iterable[JobRow], uid: int, own: Collection[str]) -> Iterator[JobRow]:
    """Yield the jobs of a user that have not ended, without some: another user's files do not count."""
    for row in rows:
        if row.owner.uid == uid and row.job.id not in own and not isinstance(row.job.state, Finished):
            yield row


def may_meet(one: str, other: str) -> bool:
    """Return True if one of two patterns names what the other is written as, part by part."""
    ones, others = (PurePosixPath(_BRACES.sub("*", each)).parts for each in (one, other))
    if not one or len(ones) != len(others):
        return False
    return all(a == b or fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in zip(ones, others, strict=True))


@cached_by_revision
def _place(revision: Revision) -> str:
    """Return the pattern of a program's checkpoints in a mount, on the host; empty: they are its own."""
    wanted = program_files(revision)
    return "" if wanted is None or not wanted.mount else os.path.normpath(f"{wanted.mount}/{wanted.pattern}")


@cached_by_revision
def _after(revision: Revision) -> tuple[str, ...]:
    return tuple(job_id for job_id, _ in revision.after)


@cached_by_revision
def _at_a_time(revision: Revision) -> int | None:
    return None if revision.sweep is None else revision.sweep.at_a_time
