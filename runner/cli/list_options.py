"""Options of ``runner list``: the jobs, and the columns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from runner.cli import formatting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runner.client.types import JobSummary

STATES: Final = (
    *("preparing", "queued", "starting", "running", "stopping", "held"),
    *("succeeded", "failed", "cancelled"),
    *("active", "ended"),
)
"""The values of ``--state``: states and outcomes, and two words for several of them."""

ACTIVE: Final = frozenset({"preparing", "queued", "starting", "running", "stopping", "held", "active"})
"""Those of jobs that have not ended."""

DAY_S: Final = 86400.0
"""Age of the ended jobs that a list shows without ``--all`` and ``--since``."""


COLUMNS: Final[dict[str, Callable[[JobSummary], Any]]] = {
    "id": lambda job: job["id"],
    "name": lambda job: job["name"],
    "owner": lambda job: job["owner"],
    "state": formatting.state_word,
    "attempts": lambda job: job["attempt"],
    "priority": lambda job: job["priority"],
    "step": formatting.progress_share,
    "since": lambda job: job["since"],
    "why": lambda job: job["why"],
    "submitted": lambda job: job["submitted_at"],
    "gpus": lambda job: ", ".join(job["gpus"]),
    "labels": lambda job: ", ".join(f"{key}={text}" for key, text in job["labels"].items()),
    "loss": lambda job: (formatting.last_report(job) or {}).get("loss"),
    "rate": lambda job: (formatting.last_report(job) or {}).get("items_per_s"),
}
"""The columns that ``--columns`` chooses from, and their values."""

NUMBERS: Final = frozenset({"step", "loss", "rate"})
"""The columns that have a value of ended jobs only where the daemon is asked for it."""

TIMES: Final = frozenset({"since", "submitted"})


def states(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> frozenset[str]:
    """Return the states of a repeated option, of which each value may name several between commas."""
    found = [word.strip().lower() for one in given for word in one.split(",")]
    for word in found:
        if word not in STATES:
            raise click.BadParameter(f"{word[:40]!r} is none of {', '.join(STATES)}", ctx, param)
    return frozenset(found)


def columns(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[str, ...]:
    """Return the names of columns between commas."""
    found = tuple(word.strip().lower() for word in (given or "").split(",") if word.strip())
    for word in found:
        if word not in COLUMNS:
            raise click.BadParameter(f"{word[:40]!r} is none of {', '.join(COLUMNS)}", ctx, param)
    if given is not None and not found:
        raise click.BadParameter(f"names no column; write some of {', '.join(COLUMNS)}", ctx, param)
    return found


def make_filter(
    wanted: frozenset[str], users: tuple[str, ...], since_s: float | None
) -> Callable[[JobSummary], bool] | None:
    """Return the filter of jobs in some states, of some users, that have not ended before a time."""
    if not (wanted or users or since_s is not None):
        return None

    def accepts(job: JobSummary) -> bool:
        ended = job["state"] == "finished"
        words = {formatting.state_word(job), "ended" if ended else "active"}
        recent = since_s is None or not ended or formatting.unix(job["since"]) >= since_s
        return recent and (not wanted or bool(words & wanted)) and (not users or job["owner"] in users)

    return accepts


def with_labels(
    accepts: Callable[[JobSummary], bool] | None, labels: Sequence[str]
) -> Callable[[JobSummary], bool] | None:
    """Return the filter of jobs as before that also have all of some labels."""
    if not labels:
        return accepts
    asked = [
        (key, value if equals else None) for key, equals, value in (text.partition("=") for text in labels)
    ]

    def has_all(job: JobSummary) -> bool:
        own = job["labels"]
        return (accepts is None or accepts(job)) and all(
            key in own and value in {None, own[key]} for key, value in asked
        )

    return has_all


def reaches_further(since_s: float | None) -> bool:
    """Return True if a time lies before what a list shows by default."""
    return since_s is not None and since_s < time.time() - DAY_S


def cells(job: JobSummary, chosen: tuple[str, ...], now: float | None = None) -> tuple[object, ...]:
    """Return chosen columns of a job; with ``now``, times are ages, as tables show them."""
    values = ((name, COLUMNS[name](job)) for name in chosen)
    return tuple(
        formatting.age(value, now) if now is not None and name in TIMES else value for name, value in values
    )
