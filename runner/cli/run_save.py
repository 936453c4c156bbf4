"""``runner run --save``: the job file of a command line, with paths that are right where it is written."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.textfile import one_line, open_target
from runner.cli.run_file import yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.cli.run_file import CommandLine


@contextmanager
def saved_file(line: CommandLine, file: str, here: str) -> Iterator[bytes]:
    """Write the job file of a command line, and remove it if the body of the ``with`` statement fails.

    Raises:
        UsageError: the file exists already or cannot be written.
    """
    path, name = Path(file), one_line(file)
    text = yaml_text(relocate(line, Path(here), path).fields(), "Submit with: runner submit FILE --follow")
    try:
        with open_target(path, overwrite=False) as target:
            target.write(text)
    except FileExistsError as error:
        raise UsageError(f"{name}: exists already; give --save another name or remove it") from error
    except OSError as error:
        raise UsageError(f"{name}: cannot be written: {error.strerror}") from error
    with ExitStack() as unless_submitted:
        unless_submitted.callback(_remove, path)
        yield text.encode()
        unless_submitted.pop_all()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def relocate(line: CommandLine, here: Path, file: Path) -> CommandLine:
    """Return a command line whose relative paths are relative to the directory of ``file``."""
    there = (here / file).parent.resolve()
    if there == here.resolve():
        return line

    def moved(path: str) -> str:
        absolute = path.startswith(("/", "~", "$"))  # the last two are refused with the job file
        return path if absolute else os.path.relpath(here / path, there)

    requirements = None if line.requirements is None else moved(line.requirements)
    mounts = tuple({**mount, "source": moved(str(mount["source"]))} for mount in line.mounts)
    code = None if line.code is None else moved(line.code)
    return replace(line, code=code, mounts=mounts, requirements=requirements)
