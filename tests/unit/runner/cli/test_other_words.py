import pytest

from runner.cli.main import COMMANDS, GROUPS
from runner.cli.other_words import MEANINGS
from tests.unit.runner.cli.conftest import Invoke


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ps", "runner list"),
        ("status", "runner show JOB"),
        ("ls", "runner list"),
        ("rm", "runner cancel JOB"),
        ("delete", "runner cancel JOB"),
        ("help", "runner --help"),
        ("squeue", "runner list"),
        ("SCANCEL", "runner cancel JOB"),
        ("sumbit", "submit"),
    ],
)
def test_a_word_of_another_tool_is_understood_by_its_meaning(invoke: Invoke, word: str, meant: str) -> None:
    result = invoke(word)
    assert result.exit_code == 2
    assert result.stderr == (
        f'runner: there is no command {word!r}; did you mean "{meant}"? see runner --help\n'
    )


def test_every_meaning_is_a_command_and_no_command_is_explained_away() -> None:
    commands = {command.split()[1] for command in MEANINGS.values()}
    assert commands <= {*COMMANDS, "--help"}
    assert not MEANINGS.keys() & COMMANDS.keys()


def test_every_command_stands_below_one_heading_of_the_help(invoke: Invoke) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    text = " ".join(invoke("--help").stdout.split())
    for name in COMMANDS:
        first = invoke(name, "--help").stdout.split("\n\n")[1].split(". ")[0].rstrip(".")
        assert " ".join(first.split()) in text
