"""The command reference, from the commands' own help: ``python -m runner.cli.reference docs/cli.md``.

What stands above the marker is written by hand and kept; what stands below it is made here.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from runner.cli.main import EXIT_CODES, cli

MARKER: Final = "<!-- made by python -m runner.cli.reference: do not edit below -->"
WIDTH: Final = 100


def reference() -> str:
    """Return everything below the marker: the exit codes, and the help of every command."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sections = "".join(f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in _helps(cli, "runner", None))
    return f"{MARKER}\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}{sections}"


def renewed(page: str) -> str:
    """Return ``page`` with everything below its marker made anew."""
    by_hand, _, _ = page.partition(MARKER)
    return by_hand + reference()


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, path, terminal_width=WIDTH, max_content_width=WIDTH)
    # Not what click puts in the usage line, which is the chain of names: that is what a user types.
    context.help_option_names = cli.context_settings["help_option_names"]
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) and not found.hidden:
                yield from _helps(found, f"{path} {name}", None)


def main(path: Path) -> None:
    """Renew one page."""
    path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
