"""The pages about profiles: every profile, every switch, every promise; every piece of YAML right."""

import re
from pathlib import Path

import pytest

from jobs.contract import KINDS, SWITCHES, profiles_dir
from runner.files.job.load import parse_job
from runner.files.profiles.conflicts import CONTRADICTIONS, IMPOSSIBLE
from runner.files.profiles.environment import build_environment
from runner.files.profiles.load import (
    ACCELERATORS,
    ProfileChoice,
    profile_chain,
    profile_names,
    resolve_choice,
)

DOCS = Path(__file__).parents[5] / "docs"
ROOT = DOCS.parent
TEXT = (DOCS / "reference/profiles.md").read_text(encoding="utf-8")
PAGE = (DOCS / "reference/profiles/switches.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "provenance/promises.md").read_text(encoding="utf-8")
NAMES = profile_names(profiles_dir())
NUMBERED = {"M": (range(23, 29),), "G": (range(1, 6), range(24, 35)), "T": (range(17, 32),),
            "L": (range(63, 67),), "A": (range(20, 27),)}  # fmt: skip
"""The numbers that the five documents promise, as this project counts their statements."""


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    below = text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def all_rows(text: str) -> list[list[str]]:
    return [row for heading in re.findall(r"^## (.+)$", text, re.MULTILINE) for row in rows(text, heading)]


def test_the_page_lists_every_profile_with_what_it_extends() -> None:
    told = {words(row[0])[0]: words(row[1]) for row in rows(TEXT, "The profiles that come along")}
    assert told == {name: list(profile_chain(name, profiles_dir())[1:2]) for name in NAMES}


def test_the_page_lists_every_contradiction() -> None:
    told = {
        (words(row[0])[0].split(":")[0], words(row[1])[0].split(":")[0])
        for row in rows(TEXT, "Contradictions")
    }
    known = {(rule.one, rule.other) for rule in CONTRADICTIONS}
    assert told == known | {(switch, accelerator) for switch, _, accelerator, _ in IMPOSSIBLE}


def test_the_page_lists_every_variable() -> None:
    told = {word for row in rows(TEXT, "The environment") for word in words(row[0])}
    launch = ProfileChoice(extends="deterministic", launch_blocking=True)
    made = {
        name
        for where in ACCELERATORS
        for name in build_environment(resolve_choice(launch, profiles_dir(), where), where, 2, DOCS, DOCS)
    }
    assert told == made


def test_every_switch_has_one_row_that_says_all_there_is_to_say() -> None:
    found = all_rows(PAGE)
    assert sorted(words(row[0])[0] for row in found) == sorted(SWITCHES)
    assert all(len(row) == 6 and all(row) for row in found)


def test_every_promise_has_a_row_that_names_what_does_it_here() -> None:
    found = [row for row in all_rows(PROMISES) if re.fullmatch(r"[A-Z]\d+", row[0])]
    numbered = [f"{letter}{n}" for letter, parts in NUMBERED.items() for part in parts for n in part]
    assert [row[0] for row in found] == numbered
    for row in found:
        assert words(row[2]), row
        assert set(words(row[2])) <= {*SWITCHES, *KINDS, *NAMES}, row
        assert all(row), row


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_every_piece_of_yaml_on_the_page_is_right(block: str) -> None:
    workload = "workload: {kind: causal_lm, data: stdlib}\n"
    gpu = "resources: {gpus: 1}\naccelerator: cuda\n" if "cuda" in block else ""
    assert parse_job((workload + gpu + block).encode(), Path("job.yaml")).name == "job"
