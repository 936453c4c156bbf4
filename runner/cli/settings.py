"""``runner settings``: check the operator's settings, and let the daemon read them again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from runner.base.units import format_size
from runner.cli.console import complain, complain_of, say, say_json
from runner.cli.parameters import CommandGroup, as_json
from runner.client.client import find_running

FILE = click.Path(path_type=Path)


@click.group(cls=CommandGroup)
def settings() -> None:
    """Check and reload the operator's settings."""


@settings.command()
@click.argument("file", required=False, type=FILE)
@as_json
def check(file: Path | None, *, as_json: bool) -> None:
    """Check a settings file; each problem is a line FILE:LINE:COLUMN: KEY: FACT.

    FILE is by default the one that your daemon reads. Warnings name users, groups, classes and profiles
    that do not exist here. The exit code is 2 if there is a problem.
    """
    from runner.base.errors import UsageError
    from runner.base.textfile import FileError, one_line
    from runner.files.settings.model import load_settings, settings_path

    shown = one_line(str(file or settings_path()))
    try:
        known = load_settings(file)
        known.seccomp_text()
    except UsageError as error:
        if as_json:
            lines = error.lines if isinstance(error, FileError) else [str(error)]
            say_json({"file": shown, "problems": list(lines), "warnings": [], "settings": None})
        else:
            complain_of(error)
        click.get_current_context().exit(error.exit_code)
    warnings = list(known.strangers())
    said = known.model_dump(mode="json", exclude_unset=True)
    kept = known.queue.shipped_classes()
    note = f"queue.classes: {', '.join(kept)} as shipped; NAME: null leaves one out" if kept else ""
    if as_json:
        say_json({"file": shown, "problems": [], "warnings": warnings, "settings": said})
        return
    for warning in warnings:
        complain(f"warning: {warning}")
    if file is None and not settings_path().exists():
        say(f"{shown}: does not exist; all settings have their defaults")
        return
    say(f"{shown}: valid")
    if note:
        complain(note)
    for name, value in said.items():
        say(f"{name}: {json.dumps(_with_unit(name, value))}")


def _with_unit(name: str, value: object) -> object:
    """Return a value of the settings as a person writes it: a size with its unit."""
    if isinstance(value, dict):
        return {key: _with_unit(key, each) for key, each in value.items()}
    return format_size(value) if "bytes" in name and isinstance(value, int) else value


@settings.command("reload")
@as_json
def reload_(*, as_json: bool) -> None:
    """Let the daemon read its settings again, as "systemctl reload" and SIGHUP do.

    For root and the daemon's own user. A file with a mistake changes nothing (exit code 2). Settings
    that need a restart are named, and keep their values.
    """
    from runner.base.textfile import one_line

    answer = find_running(complain).post("/v1/settings/reload", {})
    if as_json:
        say_json(answer)
        return
    read = f"{one_line(answer['file'])}: " if answer["file"] else ""
    say(f"{read}in force now: {', '.join(answer['changed']) or 'nothing new'}")
    if answer["needs_restart"]:
        complain(f"not before a restart of the daemon: {', '.join(answer['needs_restart'])}")
