"""``runner profiles``: print the switches of the named profiles and their reasons.  Needs no daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from runner.cli.console import say_json, say_table
from runner.cli.parameters import CommandGroup, as_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runner.files.profiles.load import ProfileSetting

COLUMNS: Final = ("SWITCH", "VALUE", "FROM", "WHY")


def _complete(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    from runner.files.profiles.load import profile_names

    return [CompletionItem(name) for name in profile_names(_directory()) if name.startswith(begun)]


@click.group(cls=CommandGroup)
def profiles() -> None:
    """List, show and compare profiles: named sets of optimisation settings for job files.

    "profile: NAME" in a job file selects one; the default "auto" is the one named after the
    accelerator.
    """


@profiles.command("list")
@as_json
def list_profiles(*, as_json: bool) -> None:
    """List the profiles."""
    from runner.files.profiles.load import first_comment, profile_chain, profile_names

    directory = _directory()
    rows = [
        (name, profile_chain(name, directory)[1:], first_comment(directory / f"{name}.yaml"))
        for name in profile_names(directory)
    ]
    facts = [{"name": name, "extends": above, "for": text} for name, above, text in rows]
    shown = [(name, ", ".join(above), text) for name, above, text in rows]
    plain = [(name, ",".join(above), text) for name, above, text in rows]
    say_table(("NAME", "EXTENDS", "FOR"), shown, plain, objects=facts if as_json else None)


@profiles.command()
@click.argument("name", shell_complete=_complete)
@click.option("--explain", is_flag=True, help="Also print where each value comes from and why.")
@as_json
def show(*, name: str, explain: bool, as_json: bool) -> None:
    """Show all switches of a profile."""
    said = _named(name)
    if as_json:
        settings = {switch: one.value for switch, one in said.items()}
        reasons = {switch: _explained(one) for switch, one in said.items()}
        say_json({"name": name, "switches": settings, **({"explained": reasons} if explain else {})})
        return
    rows = [(switch, _text(one), one.place, one.reason) for switch, one in said.items()]
    width = len(COLUMNS) if explain else 2
    say_table(COLUMNS[:width], [row[:width] for row in rows])


@profiles.command()
@click.argument("one", metavar="A", shell_complete=_complete)
@click.argument("other", metavar="B", shell_complete=_complete)
@as_json
def diff(*, one: str, other: str, as_json: bool) -> None:
    """Show the switches in which two profiles differ."""
    from runner.files.profiles.load import ENVIRONMENT, ProfileSetting

    left, right = ({ENVIRONMENT: ProfileSetting({}), **_named(name)} for name in (one, other))
    differing = [switch for switch in left if left[switch].value != right[switch].value]
    if as_json:
        pairs = {switch: [left[switch].value, right[switch].value] for switch in differing}
        say_json({"profiles": [one, other], "switches": pairs})
        return
    rows = [(switch, _text(left[switch]), _text(right[switch])) for switch in differing]
    say_table(("SWITCH", one, other), rows, empty=f"{one} and {other} switch the same")


def _directory() -> Path:
    from jobs.contract import profiles_dir

    return profiles_dir()


def _named(name: str) -> Mapping[str, ProfileSetting]:
    """Return the switches of a profile.

    Raises:
        UsageError: no profile has that name, or its files are invalid.
    """
    from runner.base.errors import UsageError
    from runner.base.textfile import quoted
    from runner.files.profiles.load import ACCELERATORS, AUTO, load_profile, profile_names
    from runner.files.validation import suggest_profile

    names = profile_names(_directory())
    if name == AUTO:
        raise UsageError(f"{AUTO} is {', '.join(ACCELERATORS)}, whichever the job gets; choose one of them")
    if name not in names:
        hint = suggest_profile(name, names)
        raise UsageError(f"there is no profile {quoted(name)}{hint}")
    return load_profile(name, _directory())


def _text(said: ProfileSetting) -> str:
    """Return a value as YAML writes it."""
    if said.value is None:
        return "null"
    return str(said.value).lower() if isinstance(said.value, bool) else str(said.value)


def _explained(said: ProfileSetting) -> dict[str, object]:
    line = said.at.line if said.at else None
    return {"value": said.value, "profile": said.profile, "line": line, "reason": said.reason}
