"""A file of another tool in words: the runner does not read it, and tells what can be taken from it."""

import re
from collections.abc import Sequence
from typing import Final

from runner.base.textfile import one_line

MOST_NAMED: Final = 20

_PIPENV: Final = "pipenv requirements > requirements.txt"
EXPORTED: Final = {
    "Pipfile": _PIPENV,
    "Pipfile.lock": _PIPENV,
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "pixi.toml": "pixi project export conda-environment environment.yml",
    "pixi.lock": "pixi project export conda-environment environment.yml",
    "uv.lock": "uv export -o requirements.txt",
}
"""Files of tools, and the commands that write them down in words that others read."""

_ENTRY: Final = re.compile(r"( *)-\s+(.*)")


def describe_other(name: str, text: str) -> str:
    """Return in one line whose file it is; of a conda file with its packages of pip, of conda, and Python."""
    if (command := EXPORTED.get(name)) is not None:
        return f"is a file of {command.split()[0]}, which is not read; write it down: {command}"
    pip, conda = _parts(text.splitlines())
    if not (pip or conda):
        return "is not a file of requirements; name a requirements.txt, pyproject.toml or pylock.toml"
    python = next((each for each in conda if re.match(r"python\b", each)), "")
    version = re.search(r"\d+\.\d+", python)
    others = [each for each in conda if each != python and re.match(r"pip\b", each) is None]
    facts = ["is a conda file, which is not read"]
    facts += [f"its pip part can stand in a requirements.txt: {_named(pip)}"] if pip else []
    if others:
        facts.append(f"write these by their names in the index, as far as they are needed: {_named(others)}")
    facts += [f'python is image: {{python: "{version[0]}"}}'] if version else []
    return "; ".join(facts)


def _parts(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the packages of pip and those of conda."""
    pip: list[str] = []
    conda: list[str] = []
    is_below, inner = False, -1  # dependencies:, and how far the list of pip is indented
    for line in lines:
        entry = _ENTRY.fullmatch(line.partition(" #")[0].rstrip())
        if entry is None:
            is_below = line.startswith("dependencies:") if line[:1].strip() else is_below
            continue
        name = entry[2].strip("\"'")
        if not is_below:
            continue
        if name.rstrip() == "pip:":
            inner = len(entry[1])
        elif inner >= 0 and len(entry[1]) > inner:
            pip.append(name)
        else:
            inner = -1
            conda.append(name.rpartition("::")[2])
    return pip, conda


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return one_line(", ".join(names[:MOST_NAMED])) + more
