"""Messages, proxies and dispatchers that follow from the signatures of an interface."""

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket, socketpair
from typing import Annotated, Any, Final, Protocol

import pytest
from pydantic import Field, ValidationError

from runner.adapters.rpc.calls import Calls, Descriptor, Interface
from runner.adapters.rpc.errors import ErrorKinds
from runner.adapters.rpc.frames import Disconnected, close_all, receive, send
from runner.base.errors import Refused, Unavailable, UsageError


@dataclass(frozen=True)
class Book:
    title: str
    pages: int = 0


class Missing(Exception):
    def __init__(self, title: str, near: list[str]) -> None:
        super().__init__(title)
        self.near = near


class Library(Protocol):
    def lend(self, title: Annotated[str, Field(pattern="^[a-z]+$")], days: int = 14) -> Book: ...

    def count(self) -> int: ...

    def store(self, content: bytes, where: Mapping[str, Path]) -> bytes: ...

    def read(self, file: Descriptor, limit: int) -> str: ...

    def open(self, path: str) -> Descriptor: ...

    def call(self) -> socket: ...

    def _secret(self) -> None: ...


class Shelf(Protocol):
    def names(self) -> tuple[str, ...]: ...


@dataclass
class LocalLibrary:
    """Satisfies ``Library``."""

    asked: list[object] = field(default_factory=list)
    problem: Exception | None = None

    def lend(self, title: str, days: int = 14) -> Book:
        self.asked.append((title, days))
        if self.problem is not None:
            raise self.problem
        return Book(title, 7)

    def count(self) -> int:
        return 3

    def store(self, content: bytes, where: Mapping[str, Path]) -> bytes:
        self.asked.append(where)
        return content[::-1]

    def read(self, file: int, limit: int) -> str:
        return os.read(file, limit).decode()

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY)

    def call(self) -> socket:
        mine, theirs = socketpair()
        with mine:
            mine.sendall(b"hello")
        return theirs


@dataclass
class LocalShelf:
    number: int

    def names(self) -> tuple[str, ...]:
        return ("a", "b")[: self.number]


CALLS: Final = Calls(
    {"library": Interface(Library), "shelf": Interface(Shelf, int)},
    ErrorKinds({Missing: lambda error: (str(error), error.near)}),
)


@dataclass
class Ends:
    """Both ends in one process: an exchange is a function call."""

    library: LocalLibrary = field(default_factory=LocalLibrary)

    def exchange(self, request: bytes, given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        try:
            content, opened = CALLS.do({"library": self.library, "shelf": LocalShelf}, request, list(given))
        except Exception as error:  # noqa: BLE001  as a server does
            return CALLS.errors.pack(error), []
        return content, list(opened)

    @property
    def remote(self) -> Library:
        found: Library = CALLS.proxy("library", self.exchange)
        return found


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a").write_text("content")
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_call_reaches_the_implementation_with_typed_values_and_defaults(ends: Ends) -> None:
    assert ends.remote.lend("emma") == Book("emma", 7)
    assert ends.remote.lend(days=3, title="emma") == Book("emma", 7)
    assert ends.library.asked == [("emma", 14), ("emma", 3)]
    assert ends.remote.count() == 3
    assert ends.remote.store(b"\x00\xff", {"a": Path("/x")}) == b"\xff\x00"
    assert ends.library.asked[-1] == {"a": Path("/x")}


def test_an_interface_with_a_key_calls_the_object_of_the_key(ends: Ends) -> None:
    for number, names in ((1, ("a",)), (2, ("a", "b"))):
        shelf: Shelf = CALLS.proxy("shelf", ends.exchange, number)
        assert shelf.names() == names


def test_descriptors_travel_beside_the_frame(ends: Ends, file: int, tmp_path: Path) -> None:
    assert ends.remote.read(file, 3) == "con"
    opened = ends.remote.open(str(tmp_path / "a"))
    assert os.read(opened, 9) == b"content"
    os.close(opened)
    with ends.remote.call() as called:
        assert called.recv(9) == b"hello"


def test_a_value_that_the_interface_does_not_take_is_refused_at_both_ends(ends: Ends) -> None:
    with pytest.raises(ValidationError):
        ends.remote.lend("Emma!")
    with pytest.raises(TypeError):
        ends.remote.lend("emma", 3, 4)  # type: ignore[call-arg]
    wrong: list[bytes] = [
        b'{"op": "library.lend", "title": "Emma!"}',
        b'{"op": "library.lend", "title": "emma", "more": 1}',
        b'{"op": "library.lend"}',
        b'{"op": "library._secret"}',
        b'{"op": "library.__init__"}',
        b'{"op": "shelf.names"}',
        b'{"op": "shelf.names", "key": "x"}',
        b"[]",
        b"\xff",
    ]
    for content in wrong:
        with pytest.raises(Refused, match="not a request"):
            CALLS.do({"library": ends.library, "shelf": LocalShelf}, content, [])
    assert ends.library.asked == []


def test_descriptors_that_do_not_belong_to_a_call_are_refused(ends: Ends, file: int) -> None:
    targets: dict[str, Any] = {"library": ends.library}
    with pytest.raises(Refused, match=r"library\.count takes 0 descriptors, and 1 came"):
        CALLS.do(targets, b'{"op": "library.count"}', [file])
    with pytest.raises(Refused, match="takes 1 descriptors, and 0 came"):
        CALLS.do(targets, b'{"op": "library.read", "limit": 1}', [])


def test_an_answer_without_its_descriptor_is_no_answer_and_others_are_closed(ends: Ends, file: int) -> None:
    def none(_request: bytes, _given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        return b'{"value": null}', []

    with pytest.raises(Unavailable, match="no descriptor"):
        CALLS.proxy("library", none).open("x")
    extra = os.dup(file)

    def more(_request: bytes, _given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        return b'{"value": 3}', [extra]

    assert CALLS.proxy("library", more).count() == 3
    with pytest.raises(OSError, match="Bad file"):
        close_all([extra])
    assert ends.remote.count() == 3


ERRORS: Final[list[Exception]] = [
    Refused("no"),
    UsageError("say more"),
    Unavailable("later"),
    OSError(errno.ENOSPC, "No space left on device"),
    Missing("emma", ["emma2"]),
]


@pytest.mark.parametrize("problem", ERRORS, ids=lambda each: type(each).__name__)
def test_an_error_is_raised_again_as_what_it_was(ends: Ends, problem: Exception) -> None:
    ends.library.problem = problem
    with pytest.raises(type(problem)) as raised:
        ends.remote.lend("emma")
    assert (type(raised.value), str(raised.value)) == (type(problem), str(problem))
    if isinstance(raised.value, Missing):
        assert raised.value.near == ["emma2"]


def test_the_cause_of_an_error_is_told_and_a_mistake_becomes_unavailable(ends: Ends) -> None:
    ends.library.problem = Refused("no")
    ends.library.problem.__cause__ = OSError(errno.ENOENT, "x")
    with pytest.raises(Refused) as raised:
        ends.remote.lend("emma")
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOENT
    ends.library.problem = KeyError("x")
    with pytest.raises(Unavailable, match="x"):
        ends.remote.lend("emma")
    assert not CALLS.errors.expects(KeyError("x"))


def test_a_descriptor_that_comes_in_goes_to_no_program_that_is_started_later(tmp_path: Path) -> None:
    """It may be a file of one user, and the program a command of another."""
    (tmp_path / "file").write_text("private")
    here, there = socketpair()
    with here, there, (tmp_path / "file").open() as file:
        send(here, b"{}", file.fileno())
        content, [found] = receive(there, 100)
        assert (content, os.get_inheritable(found), os.read(found, 100)) == (b"{}", False, b"private")
        os.close(found)


class Dripping:
    """A connection that brings one byte of a frame in each 29 of 30 seconds."""

    def __init__(self) -> None:
        self.now_s, self.limits_s = 0.0, list[float]()

    def gettimeout(self) -> float:
        return 30.0

    def settimeout(self, limit_s: float) -> None:
        self.limits_s.append(limit_s)

    def recvmsg(self, size: int, *_: int) -> tuple[bytes, list[Any], int, None]:
        return bytes([0, 0, 0, 200])[:size], [], 0, None

    def recv_into(self, _: memoryview) -> int:
        self.now_s += 29
        return 1


def test_an_answer_that_comes_byte_by_byte_has_the_time_of_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection: Any = Dripping()
    monkeypatch.setattr("runner.adapters.rpc.frames.monotonic", lambda: connection.now_s)
    with pytest.raises(Disconnected) as caught:
        receive(connection, 1000)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert connection.limits_s == [1.0]
