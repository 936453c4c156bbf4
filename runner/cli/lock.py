"""``runner lock``: resolve the packages of a job file into a lock beside it."""

from __future__ import annotations

import os

import click

from runner.base.errors import UsageError
from runner.cli.console import complain, details_told, say
from runner.cli.parameters import check_text, verbose
from runner.cli.placing import placed
from runner.cli.submit import read
from runner.client.client import find_or_start


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "-o",
    "--output",
    callback=check_text,
    metavar="LOCK",
    help="The lock to write.  [default: pylock.toml beside FILE]",
)
@verbose
def lock(file: str, output: str | None, *, verbose: bool) -> None:
    """Resolve the packages of a job FILE now, and write the lock beside it.

    A job file with "requirements: pylock.toml" gets exactly these packages, on any machine (PEP 751,
    with sha256).
    """
    with details_told(verbose=verbose):
        raw = read(file)
        plan = find_or_start(complain).submit(placed(file, raw), raw, None, dry_run=True, shown=file)
    text = plan["job"].get("lock")
    if text is None:
        raise UsageError(f"{file}: names no packages; write image: {{requirements: requirements.txt}}")
    target = output or os.path.join(os.path.dirname(file), "pylock.toml")
    partial = f"{target}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(partial, target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error
    say(f"{target}: {text.count('[[packages]]')} packages")
