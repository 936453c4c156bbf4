"""The generated part of ``docs/reference/cli.md``: the exit codes, and the help of every command."""

from collections.abc import Iterator
from typing import Final

import click

from runner.cli.main import EXIT_CODES, cli

WIDTH: Final = 100


def reference() -> str:
    """Return the exit codes and the help texts as Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sections = "".join(f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in _helps(cli, "runner", None))
    return f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}{sections}"


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, path, terminal_width=WIDTH, max_content_width=WIDTH)
    # Without a parent, the usage line shows the path alone, which is what a user types.
    context.help_option_names = cli.context_settings["help_option_names"]
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) and not found.hidden:
                yield from _helps(found, f"{path} {name}", None)
