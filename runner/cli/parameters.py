"""Arguments, options and groups that several commands share: a JOB, a duration, ``--json``."""

import re
import time
from collections.abc import Callable, Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem

UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ONE_UNIT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?)([smhd]?)")
_AGO: Final = re.compile(r" ago$")
COMPLETION_LIMIT_S: Final = 0.5
LONGEST_SHOWN: Final = 60  # characters of a wrong argument in a message
WHOLE: Final = 1000  # character limit of a summary, longer than any summary
CONDITIONS: Final = ("ok", "any", "failed")  # of a job that another one waits for
LARGEST: Final = 2**63 - 1  # limit of integers in the store


class CommandGroup(click.Group):
    """A group whose help shows the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(command_summaries(self, ctx, self.list_commands(ctx)))


def command_summaries(group: click.Group, ctx: click.Context, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the commands of a group that are not hidden, each with its first sentence."""
    found = ((name, group.get_command(ctx, name)) for name in names)
    return [(name, each.get_short_help_str(WHOLE)) for name, each in found if each and not each.hidden]


def count_from(least: int) -> Callable[[click.Context, click.Parameter, object], int | None]:
    """Return a callback that accepts an integer between ``least`` and the largest one of the store."""

    def check(ctx: click.Context, param: click.Parameter, given: object) -> int | None:
        if given is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,40}", str(given)):
            raise click.BadParameter(f"{str(given)[:LONGEST_SHOWN]!r} is not a whole number", ctx, param)
        if not least <= int(str(given)) <= LARGEST:
            limit = f"less than {least}" if int(str(given)) < least else f"more than {LARGEST}"
            raise click.BadParameter(f"{given} is {limit}", ctx, param)
        return int(str(given))

    return check


def check_ref(ctx: click.Context, param: click.Parameter, given: str) -> str:
    """Return a reference to a job: an id, a prefix of an id, or a name; the daemon resolves it."""
    if not re.fullmatch(r"[^\s/\x00-\x1f\x7f\ud800-\udfff]{1,200}", given):
        short = given if len(given) <= LONGEST_SHOWN else f"{given[: LONGEST_SHOWN - 1]}…"
        raise click.BadParameter(f"{short!r} is neither an id nor a name of a job", ctx, param)
    return given


def check_optional_ref(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    return None if given is None else check_ref(ctx, param, given)


verbose: Final = click.option("--verbose", is_flag=True, help="Print all output of the package resolver.")


def check_text(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Return a text that is valid UTF-8; Python passes other bytes of an argument as lone surrogates."""
    if given is not None and re.search(r"[\ud800-\udfff]", given):
        raise click.BadParameter(f"{given[:LONGEST_SHOWN]!r} is not UTF-8 text", ctx, param)
    return given


def check_refs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(check_ref(ctx, param, one) for one in given)


def complete_names(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the job names that a running daemon knows; no daemon is started."""
    from runner.client.client import job_names

    return [CompletionItem(name) for name in job_names(COMPLETION_LIMIT_S) if name.startswith(begun)]


def seconds(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    """Return a duration in seconds, in the form of job files: ``90m`` or ``2h30m``; ``90`` is seconds."""
    if given is None:
        return None
    if match := _ONE_UNIT.fullmatch(given):
        return float(match[1]) * UNIT_S[match[2]]
    from runner.base.units import parse_duration

    try:
        return parse_duration(given).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def seconds_of_unit(ctx: click.Context, param: click.Parameter, given: str) -> float | None:
    """Return a duration in seconds; a number without a unit is refused."""
    if (match := _ONE_UNIT.fullmatch(given)) and not match[2]:
        raise click.BadParameter(f"{given!r} has no unit; write a unit: 7d, 12h, 30m", ctx, param)
    return seconds(ctx, param, given)


def time_ago(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    """Return the Unix time of ``2030-01-31T18:00:00+01:00``, or of a duration: ``10m`` or ``10m ago``."""
    if given is None:
        return None
    if re.match(r"[0-9]+-", given):
        from datetime import datetime

        try:
            return datetime.fromisoformat(given).timestamp()  # without an offset, it is the time here
        except (ValueError, OverflowError) as error:
            example = "write a duration such as 10m, or 2030-01-31T18:00:00+01:00"
            raise click.BadParameter(
                f"{given[:LONGEST_SHOWN]!r} is not a time; {example}", ctx, param
            ) from error
    ago = seconds_of_unit(ctx, param, _AGO.sub("", given))
    return None if ago is None else time.time() - ago


def time_ahead(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Return a time with its offset from UTC: ``22:00``, the next one here, ``tomorrow 9:00`` or ``+2h``.

    A time without an offset is one here. A whole date is returned as it is; the daemon says what is wrong.
    """
    given = check_text(ctx, param, given)
    given = _WORDS_OF_SLURM.get(given or "", given)
    clock = re.fullmatch(r"(?:(today|tomorrow)(?: +|$))?(?:([01]?[0-9]|2[0-3]):([0-5][0-9]))?", given or "")
    ahead = re.fullmatch(r"(?:now *)?\+ *([^ ].*|)", given or "")
    if not given or (re.match(r"[0-9]{4}-[0-9]{2}", given) and not _DATE.fullmatch(given)):
        return given
    if not (clock or ahead or _DATE.fullmatch(given)):
        forms = "write 22:00, tomorrow 9:00, +2h or 2030-01-31T18:00"
        raise click.BadParameter(f"{given[:LONGEST_SHOWN]!r} is not a time; {forms}", ctx, param)
    from datetime import UTC, datetime, timedelta

    now = datetime.fromtimestamp(time.time(), UTC)
    if ahead:
        ahead_s = seconds_of_unit(ctx, param, _short_unit(ahead[1])) or 0.0
        try:
            moment = (now + timedelta(seconds=ahead_s)).astimezone()
        except (ValueError, OverflowError) as error:
            words = f"{given[:LONGEST_SHOWN]!r} is after the year 9999"
            raise click.BadParameter(words, ctx, param) from error
    elif clock:
        at = {"hour": int(clock[2] or 0), "minute": int(clock[3] or 0), "second": 0, "microsecond": 0}
        today = now.astimezone().replace(
            tzinfo=None, **at
        )  # without the offset of now: it may be another then
        moment = today.astimezone()
        if clock[1] == "tomorrow" or (moment <= now and not clock[1]):
            moment = (today + timedelta(days=1)).astimezone()
    else:
        try:
            moment = datetime.fromisoformat(given).astimezone()
        except (ValueError, OverflowError):  # such as the 31st of June
            return given
    return moment.astimezone().isoformat(timespec="seconds")


_WORDS_OF_SLURM: Final = {"now": "+0s", "midnight": "0:00", "noon": "12:00"}
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")
"""A date, perhaps with a time, without an offset from UTC."""


def _short_unit(duration: str) -> str:
    """Return a duration with its unit in one letter: ``1h`` for ``1hour``, as Slurm writes it."""
    return re.sub(r" *(s|m|h|d)(?:ec|econd|in|inute|our|ay)s?$", r"\1", duration)


def dependencies(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[dict[str, str], ...]:
    """Return dependencies such as ``JOB`` or ``JOB:any`` as jobs with their required outcomes."""
    found = []
    for one in given:
        job, colon, condition = one.partition(":")
        if colon and condition not in CONDITIONS:
            words = f"{condition!r} is none of {', '.join(CONDITIONS)}"
            raise click.BadParameter(words, ctx, param)
        found.append({"job": check_ref(ctx, param, job), "condition": condition or "ok"})
    return tuple(found)


the_job = click.argument("job", metavar="JOB", callback=check_ref, shell_complete=complete_names)
the_jobs = click.argument(
    "jobs", metavar="JOB...", nargs=-1, required=True, callback=check_refs, shell_complete=complete_names
)
perhaps_jobs = click.argument(
    "jobs", metavar="[JOB]...", nargs=-1, callback=check_refs, shell_complete=complete_names
)
perhaps_a_job = click.argument(
    "job", metavar="[JOB]", required=False, callback=check_optional_ref, shell_complete=complete_names
)
perhaps_a_sweep = click.option(
    "--sweep",
    metavar="JOB",
    callback=check_optional_ref,
    shell_complete=complete_names,
    help="All jobs of JOB's matrix.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
the_class = click.option(
    "--class", "priority_class", callback=check_text, metavar="NAME", help="The priority class."
)
the_priority = click.option(
    "-p", "--priority", type=click.IntRange(0, 100), metavar="N", help="Priority among your jobs, 0 to 100."
)
the_predecessors = click.option(
    "--after",
    metavar="JOB[:ok|any|failed]",
    multiple=True,
    callback=dependencies,
    help="Start when JOB has ended this way; repeatable.",
)
the_start = click.option(
    "--not-before",
    callback=time_ahead,
    metavar="TIME",
    help="Earliest start: 22:00, tomorrow 9:00, +2h, or 2030-01-31T18:00, here or with +01:00.",
)
