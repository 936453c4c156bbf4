"""The generated part of ``docs/reference/cli.md``: the exit codes, and the help of every command.

A page says once what each help text repeats: the exit codes, the option ``--help``, what ``--json`` prints,
the options of ``runner run`` that ``runner shell`` has too, and the first sentence of each command.
"""

import copy
from collections.abc import Iterator
from typing import Final

import click

from runner.cli.main import EXIT_CODES, GROUPS, cli

WIDTH: Final = 100
_JSON: Final = click.Option(["--json"], is_flag=True)


def reference() -> str:
    """Return the exit codes and the help texts as Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    groups = "".join(
        f"| {heading} | {', '.join(f'[{name}](#runner-{name})' for name in names)} |\n"
        for heading, names in GROUPS.items()
    )
    sections = "".join(f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in _helps(cli, "runner"))
    return (
        f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}"
        f"\n## Commands\n\n| about | commands |\n|---|---|\n{groups}{sections}"
    )


def _helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    # Without a parent, the usage line shows the path alone, which is what a user types.
    context = click.Context(command, None, path, terminal_width=WIDTH, max_content_width=WIDTH)
    context.help_option_names = []
    shown = copy.copy(command)
    shown.params = [each if each.name != "as_json" else _JSON for each in command.params]
    if path == "runner shell" and (run := cli.get_command(context, "run")):
        told = {option.name for option in run.params if isinstance(option, click.Option)}
        shown.params = [each for each in shown.params if each.name not in told]
    text = shown.get_help(context)
    yield path, text.partition(f"\n\n{next(iter(GROUPS))}:\n" if command is cli else "\n\nCommands:\n")[0]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) and not found.hidden:
                yield from _helps(found, f"{path} {name}")
