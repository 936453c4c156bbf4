from io import BytesIO, TextIOWrapper
from pathlib import Path

import click
import pytest

from runner.cli.console import say
from runner.cli.main import COMMANDS, EXIT_CODES, GROUPS, LOCAL, cli, main
from tests.unit.runner.cli.conftest import Invoke


def test_every_command_exists_under_its_name_and_explains_itself() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()


def test_the_help_tells_every_exit_code(invoke: Invoke) -> None:
    text = invoke("--help").stdout
    assert all(f"{code:>3}  {meaning}" in text for code, meaning in EXIT_CODES.items())


@pytest.mark.parametrize("command", sorted(LOCAL))
def test_a_command_of_this_machine_is_refused_for_a_host_however_it_is_chosen(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner/hosts.json").write_text('{"hosts": {"gpu1": "ssh://ada@gpu1"}, "use": "gpu1"}')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("RUNNER_HOST", "RUNNER_SOCKET", "RUNNER_STATE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    step = f"type it there, by ssh, or for this machine: RUNNER_HOST= runner {command}\n"
    if command != "serve":  # it is for the machine that it is typed on, unless --host is typed with it
        result = invoke(command, "--nonsense")
        assert (result.exit_code, result.stderr.endswith(step)) == (2, True)
    monkeypatch.setenv("RUNNER_HOST", "ada")
    result = invoke(command, "--nonsense")
    assert result.exit_code == 2
    assert result.stderr == f"runner {command}: acts on this machine, not on ada; {step}"
    monkeypatch.setenv("RUNNER_HOST", "")
    assert "no such option" in invoke(command, "--nonsense").stderr


@pytest.mark.parametrize("command", sorted(LOCAL))
def test_the_help_of_a_command_of_this_machine_is_for_every_host(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("RUNNER_HOST", "ada")
    assert invoke(command, "-h").stdout == invoke(command, "--help").stdout != ""
    assert "acts on this machine" in invoke(command, "--", "--help").stderr
    assert "has no value: -h follows it" in invoke("list", "--label", "-h").stderr


def test_an_unknown_command_is_a_usage_error(invoke: Invoke) -> None:
    result = invoke("submitt")
    assert (result.exit_code, "submitt" in result.stderr) == (2, True)


def test_a_file_that_is_missing_is_no_directory_that_has_gone(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "settings.yaml")

    monkeypatch.setattr("runner.cli.jobs.find_or_start", lost)
    with pytest.raises(FileNotFoundError, match=r"settings\.yaml"):
        invoke("list")


@pytest.mark.parametrize(
    ("typed", "fact"),
    [
        (("events", "--after", str(2**63)), f"{2**63} is more than {2**63 - 1}"),
        (("events", "--after", "soon"), "'soon' is not a whole number"),
        (("list", "--limit", "0"), "0 is less than 1"),
        (("logs", "x", "--attempt", "9" * 5000), f"'{'9' * 60}' is not a whole number"),
        (("restart", "x", "--from", str(2**64)), f"{2**64} is more than {2**63 - 1}"),
        (("show", "a\udcff"), "'a\\udcff' is neither an id nor a name of a job"),
        (("submit", "x.yaml", "--name", "a\udcff"), "'a\\udcff' is not UTF-8 text"),
    ],
)
def test_what_no_daemon_could_read_is_told_of_its_option(
    typed: tuple[str, ...], fact: str, invoke: Invoke
) -> None:
    result = invoke(*typed)
    assert (result.exit_code, result.stdout) == (2, "")
    assert fact in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_every_command_stands_in_one_group_of_the_help() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.parametrize("group", [(), ("policy",), ("schedule",), ("images",)])
def test_no_sentence_of_the_help_is_cut(invoke: Invoke, group: tuple[str, ...]) -> None:
    assert "..." not in invoke(*group, "--help").stdout.partition("Options:")[2]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("run --checkpoint -- python x.py", "--checkpoint has no value: -- follows it"),
        ("run -c --name x python", "-c has no value: --name follows it"),
        ("logs --sweep --tail 5", "--sweep has no value: --tail follows it"),
        ("images build --with --help", "--with has no value: --help follows it"),
        ("serve --socket --", "--socket has no value: -- follows it"),
    ],
)
def test_an_option_is_no_value_of_another(line: str, fact: str, invoke: Invoke) -> None:
    result = invoke(*line.split())
    assert result.exit_code == 2
    assert fact in result.stderr


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(
    "line", ["run -d --name=-- python", "run -d -- python --name --name", "run -d python --name --time"]
)
def test_words_of_the_command_and_values_behind_an_equals_sign_are_none_of_that(
    line: str, invoke: Invoke
) -> None:
    assert "has no value" not in invoke(*line.split()).stderr


def test_a_character_that_the_encoding_of_the_output_lacks_is_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, "latin-1", write_through=True))
    monkeypatch.setattr(cli, "main", lambda **_: say("é: 1 → 2"))
    main()
    assert written.getvalue() == b"\xe9: 1 \\u2192 2\n"
