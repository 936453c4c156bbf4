"""The shell examples of the documentation, with a program that crashes: none of them counts as a success."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[3]
SHELL: Final = r"(?:sh|bash|/bin/(?:ba)?sh)"
LIST: Final = re.compile(rf"\[\"?{SHELL}\"?, [^\[\]\n]*\]")
LINE: Final = re.compile(rf"runner (?:run|exec) [^\n]*?-- ({SHELL} [^\n`]*)")
PROGRAMS: Final = (
    "python",
    "python3",
    "torchrun",
    "accelerate",
    "tensorboard",
    "papermill",
    "ls",
    "train.sh",
)


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands with a shell in the pages, the examples and the messages."""
    for path in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml")]):
        text = path.read_text(encoding="utf-8")
        for match in LIST.finditer(text):
            yield path.name, tuple(yaml.safe_load(match[0]))
        for match in LINE.finditer(text):
            yield path.name, tuple(shlex.split(match[1]))


COMMANDS: Final = list(dict.fromkeys(commands()))


def test_there_are_such_examples() -> None:
    assert any("|" in command[-1] for _, command in COMMANDS)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: " ".join(value)[:60])
def test_a_program_that_crashes_fails_the_command(
    page: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    for name in PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    run = subprocess.run(
        command, cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/"}, check=False
    )
    assert run.returncode == 3, page
