"""``runner schedule``: manage repeated submissions of a job file.  ``runner submit`` creates them."""

from typing import Any, Final

import click

from runner.base.errors import RunnerError
from runner.cli.console import (
    complain,
    complain_of,
    on_terminal,
    say,
    say_answer,
    say_json,
    say_row,
    say_table,
)
from runner.cli.parameters import CommandGroup, as_json
from runner.client.client import find_or_start
from runner.client.http import quote_path

PATH: Final = "/v1/schedules"
COLUMNS: Final = ("ID", "NAME", "OWNER", "STATE", "CRON", "ZONE", "NEXT", "LAST")


def check_schedule(ctx: click.Context, param: click.Parameter, given: Any) -> Any:  # noqa: ANN401  one or many
    """Return ids or names of schedules; the daemon resolves them."""
    for one in (given,) if isinstance(given, str) else given or ():
        if not one or len(one) > 200 or not one.isprintable() or set(one) & set("/ "):
            raise click.BadParameter(f"{one!r} is neither an id nor a name of a schedule", ctx, param)
    return given


the_schedule = click.argument("reference", metavar="SCHEDULE", callback=check_schedule)
the_schedules = click.argument(
    "references", metavar="SCHEDULE...", nargs=-1, required=True, callback=check_schedule
)


@click.group(cls=CommandGroup)
def schedule() -> None:
    """List and control schedules, which submit a job file again and again.

    "runner submit" of a job file with the section "schedule" creates one. SCHEDULE is its id or its
    name. Only its owner and root can see and control it.
    """


@schedule.command("list")
@click.option("--all", "every", is_flag=True, help="Also list removed schedules.")
@as_json
def list_schedules(*, every: bool, as_json: bool) -> None:
    """List your schedules with their next time and their last run.

    In a pipe: id, name, owner, state, cron, zone, next time, last time and what became of it, between
    tabs.
    """
    found = find_or_start(complain).get(PATH, {"all": int(every)})["schedules"]
    empty = "no schedules: runner submit makes one of a job file with the section schedule"
    say_table(COLUMNS, map(_cells, found), empty=empty, objects=found if as_json else None)


@schedule.command()
@the_schedule
@as_json
def show(reference: str, *, as_json: bool) -> None:
    """Show one schedule: its settings, its next times and its last runs."""
    found = find_or_start(complain).get(f"{PATH}/{quote_path(reference)}")
    if as_json:
        say_json(found)
        return
    names = ("id", "name", "owner", "state", "note", "cron", "timezone", "overlap", "missed", "until", "path")
    for name in names:
        if found[name] not in {None, ""}:
            say(f"{name}\t{found[name]}")
    for at in found["next"]:
        say(f"next\t{at}")
    for each in found["occasions"]:
        say(f"at\t{each['at']}\t{_came(each)}")


@schedule.command("next")
@the_schedule
@click.option("-n", "count", type=click.IntRange(1, 1000), default=5, help="The number of times; default 5.")
@as_json
def coming(reference: str, count: int, *, as_json: bool) -> None:
    """Print the next times of a schedule in its own time zone, one on each line."""
    found = find_or_start(complain).get(f"{PATH}/{quote_path(reference)}/next", {"n": count})
    if as_json:
        say_json(found)
        return
    for at in found["next"]:
        say(at)
    if found["state"] != "active":
        complain(f"schedule {found['id']} is {found['state']}: nothing is submitted")


def _steer(verb: str, references: tuple[str, ...], words: str, *, as_json: bool) -> None:
    """Apply a verb to each schedule; an error with one schedule does not stop the others."""
    client, codes = find_or_start(complain), []
    for reference in references:
        try:
            found = client.post(f"{PATH}/{quote_path(reference)}/{verb}", {})["schedule"]
        except RunnerError as error:
            codes.append(complain_of(error))
            continue
        line = f"schedule {found['id']} ({found['name']}): {words}{_until(found)}"
        say_answer(found, line, as_json=as_json)
    click.get_current_context().exit(next(iter(codes), 0))


def _until(found: dict[str, Any]) -> str:
    return f", next at {found['next'][0]}" if found["state"] == "active" and found["next"] else ""


@schedule.command()
@the_schedules
@as_json
def pause(references: tuple[str, ...], *, as_json: bool) -> None:
    """Pause schedules; jobs that were submitted continue."""
    _steer("pause", references, "paused", as_json=as_json)


@schedule.command()
@the_schedules
@as_json
def resume(references: tuple[str, ...], *, as_json: bool) -> None:
    """Resume schedules with the next time; missed times are left out."""
    _steer("resume", references, "goes on", as_json=as_json)


@schedule.command()
@the_schedules
@as_json
def remove(references: tuple[str, ...], *, as_json: bool) -> None:
    """Remove schedules; jobs that were submitted continue, and the history stays."""
    _steer("remove", references, "removed", as_json=as_json)


# --- Output text --------------------------------------------------------------------------------------


def told(found: dict[str, Any]) -> None:
    """Print that a schedule was created from a job file."""
    if not on_terminal():
        say_row(found["id"], found["name"], *found["next"])
        return
    made = "would make a schedule" if found["id"] is None else f"is schedule {found['id']}"
    say(f"{found['name']} {made}: {found['cron']} in {found['timezone']}; no job yet, the next times are")
    for at in found["next"]:
        say(f"  {at}")


def _cells(each: dict[str, Any]) -> tuple[object, ...]:
    coming_at = each["next"][0] if each["next"] and each["state"] == "active" else None
    last = each["last"]
    return (
        each["id"],
        each["name"],
        each["owner"],
        each["state"],
        each["cron"],
        each["timezone"],
        coming_at,
        f"{last['at']} {_came(last)}" if last else None,
    )


def _came(occasion: dict[str, Any]) -> str:
    """Return the outcome of one firing."""
    word = occasion["state"].replace("_", " ")
    said = f"{word} as job {occasion['job']}" if occasion["job"] else word
    return f"{said}: {occasion['text']}" if occasion["text"] else said
