"""Commands that start without the library of the command line."""

import errno
import os
import sys
from collections.abc import Mapping

import pytest

from runner.base.errors import Refused
from runner.cli import entry, main, plain_exec
from runner.client import sessions
from runner.client.websocket import BINARY, DaemonMessage


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


@pytest.mark.parametrize(
    ("error", "codes", "told"),
    [(BrokenPipeError(), [141], ""), (OSError(errno.ENOSPC, "no space"), [4], "standard output: no space; ")],
)
@pytest.mark.usefixtures("ran")
def test_output_that_cannot_be_written_ends_the_command_as_it_ends_the_others(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    codes: list[int],
    told: str,
) -> None:
    def written(_descriptor: int, _content: bytes) -> None:
        raise error

    def use(_session: object, *, has_input: bool) -> int | None:
        return 0 if has_input else sessions._print(iter([DaemonMessage(BINARY, b"\x01x")]))

    ended: list[int] = []
    monkeypatch.setattr(sessions, "write_whole", written)
    monkeypatch.setattr(plain_exec, "use_command", use)
    monkeypatch.setattr(main, "discard", lambda _stream: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    plain_exec.run_plain(["5", "cat", "big"])
    assert (ended, capsys.readouterr().err.partition("the command")[0]) == (codes, told)


@pytest.mark.parametrize("closed", [(), ("stdin",), ("stderr",), ("stdin", "stderr"), ("stdout", "stderr")])
def test_no_connection_gets_the_number_of_a_standard_stream_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, closed: tuple[str, ...]
) -> None:
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    did: list[object] = []
    monkeypatch.setattr(sys, "argv", ["runner", "exec", "5", "true"])
    monkeypatch.setattr(entry, "end_at_interrupts", lambda: None)
    monkeypatch.setattr(os, "open", lambda *what: did.append(what))
    monkeypatch.setattr(plain_exec, "run_plain", did.append)
    monkeypatch.setattr(main, "main", lambda: did.append("main"))  # says that nothing was done
    entry.main()
    null = (os.devnull, os.O_RDWR)
    assert did == (["main"] if "stdout" in closed else [null] * len(closed) + [["5", "true"], "main"])
