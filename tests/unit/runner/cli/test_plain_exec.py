"""Commands that start without the library of the command line."""

import os
from collections.abc import Mapping

import pytest

from runner.base.errors import Refused
from runner.cli import plain_exec


class Ended(BaseException):
    """The process would have ended."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    def begin(_connection: object, ref: str, verb: str, first: Mapping[str, object]) -> object:
        calls.append((ref, verb, first["argv"], first["input"]))
        if ref == "theirs":
            raise Refused("job 7: belongs to bob")
        return first["input"]

    def use(session: object, *, has_input: bool) -> int:
        assert session == has_input
        return 7

    def end(code: int) -> None:
        calls.append((code,))
        raise Ended

    monkeypatch.setattr(plain_exec, "open_on", begin)
    monkeypatch.setattr(plain_exec, "use_command", use)
    monkeypatch.setattr(plain_exec, "connect", lambda _path: None)
    monkeypatch.setattr(os, "_exit", end)
    return calls


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["5", "true"], ("5", "exec", ["true"], False)),
        (["5", "--", "ls", "-l", "--", "x"], ("5", "exec", ["ls", "-l", "--", "x"], False)),
        (["-i", "5", "cat"], ("5", "exec", ["cat"], True)),
        (["--interactive", "5", "cat", "-i"], ("5", "exec", ["cat", "-i"], True)),
    ],
)
def test_the_plain_form_runs_at_once(
    ran: list[tuple[object, ...]], words: list[str], call: tuple[object, ...]
) -> None:
    with pytest.raises(Ended):
        plain_exec.run_plain(words)
    assert ran == [call, (7,)]


@pytest.mark.parametrize(
    "words",
    [[], ["5"], ["5", "--"], ["-i"], ["-i", "5"], ["-it", "5", "sh"], ["-h"], ["-t", "5", "sh"],
     ["a b", "true"], ["é", "true"], ["", "true"], ["a/b", "true"], ["x" * 201, "true"],
     ["--help", "5", "true"]],
)  # fmt: skip
def test_everything_else_is_left_to_the_library(ran: list[tuple[object, ...]], words: list[str]) -> None:
    plain_exec.run_plain(words)
    assert ran == []


def test_a_refusal_has_its_message_and_its_code(
    ran: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Ended):
        plain_exec.run_plain(["theirs", "true"])
    assert ran[-1] == (Refused.exit_code,)
    assert capsys.readouterr().err == "job 7: belongs to bob\n"
