"""One HTTP/1.1 exchange over a connected socket.

The standard library's HTTP client imports the e-mail parser, which takes longer than a submission.  This
module therefore implements the small part of HTTP that the client needs.
"""

import json
import socket
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any, Final, NamedTuple, NoReturn

from runner.base.errors import RunnerError, Unavailable

MAX_HEAD_BYTES: Final = 64 * 1024
UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

Query = Mapping[str, str | int | float | None]


class Response(NamedTuple):
    """One HTTP response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ErrorResponse(RunnerError):
    """An error response of the daemon, with the lines for the user and the exit code."""

    def __init__(self, kind: str, lines: list[str], code: int) -> None:
        super().__init__("\n".join(lines))
        self.kind = kind
        self.lines = lines
        self.code = code


def exchange(connection: socket.socket, method: str, target: str, body: bytes | None) -> Response:
    """Return the response to one request on a fresh connection.

    Raises:
        OSError: the connection broke, or the answer is not an HTTP response.
    """
    head = f"{method} {target} HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(head.encode("ascii") + b"\r\n" + (body or b""))
    with connection.makefile("rb") as stream:
        status, headers = _read_head(stream)
        return Response(status, headers, _read_body(stream, headers))


class StreamedBody:
    """The body of an answer, read piece by piece."""

    def __init__(self, stream: IO[bytes], headers: Mapping[str, str]) -> None:
        self._stream = stream
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; nothing at the end.

        Raises:
            OSError: the body ends early.
        """
        if not self._is_chunked:
            return self._stream.read(size)
        if not self._rest:
            self._rest = _read_chunk(self._stream)
        part, self._rest = self._rest[:size], self._rest[size:]
        return part


def begin(connection: socket.socket, stream: IO[bytes], target: str) -> StreamedBody | Response:
    """Send a GET request, and return the body of a good answer to read, or a bad answer as a whole.

    Raises:
        OSError: the connection broke, or the answer is not an HTTP response.
    """
    head = f"GET {target} HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n\r\n"
    connection.sendall(head.encode("ascii"))
    status, headers = _read_head(stream)
    if status < 300:
        return StreamedBody(stream, headers)
    return Response(status, headers, _read_body(stream, headers))


def _read_head(stream: IO[bytes]) -> tuple[int, dict[str, str]]:
    words = _read_line(stream).split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise OSError("not an HTTP response")
    headers = {}
    while line := _read_line(stream):
        name, _, text = line.partition(":")
        headers[name.strip().lower()] = text.strip()
    return int(words[1]), headers


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the head of a response, without the empty line behind it."""
    return _read_head(BytesIO(head + b"\r\n\r\n"))


def _read_body(stream: IO[bytes], headers: Mapping[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return b"".join(iter(lambda: _read_chunk(stream), b""))
    if "content-length" in headers:
        return _read_exactly(stream, _parse_number(headers["content-length"], 10))
    return stream.read()


def _read_chunk(stream: IO[bytes]) -> bytes:
    """Return the next chunk; the last one is empty, and its trailers are consumed."""
    size = _parse_number(_read_line(stream).partition(";")[0], 16)
    if size:
        chunk = _read_exactly(stream, size)
        _read_line(stream)
        return chunk
    while _read_line(stream):
        continue
    return b""


def _parse_number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise OSError("not an HTTP response") from error


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    body = stream.read(size)
    if len(body) != size:
        raise OSError("the answer is cut short")
    return body


def _read_line(stream: IO[bytes]) -> str:
    line = stream.readline(MAX_HEAD_BYTES)
    if not line.endswith(b"\n"):
        raise OSError("the answer is cut short")
    return line.rstrip(b"\r\n").decode("latin-1")


def raise_for_error(answer: Response) -> NoReturn:
    """Raise the error of a response other than 2xx, even if its body has an unexpected form."""
    try:
        raise error_of(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = answer.body[:200].decode(errors="replace")
        raise Unavailable(f"the daemon answered {answer.status}: {text}") from error


def error_of(error: Mapping[str, Any]) -> ErrorResponse:
    """Return an error that the daemon has described.

    Raises:
        KeyError: a field is missing.
    """
    lines = [str(line) for line in error.get("lines") or [error["message"]]]
    found = ErrorResponse(str(error["kind"]), lines, int(error["exit_code"]))
    found.details = "\n".join(map(str, error.get("details", ())))
    return found


def quote_path(text: str) -> str:
    """Return ``text`` as one segment of a URL."""
    return "".join(
        chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in text.encode(errors="surrogateescape")
    )


def query_string(query: Query) -> str:
    """Return ``?a=1&b=2`` without the values that are None."""
    pairs = [
        f"{quote_path(key)}={quote_path(str(value))}" for key, value in query.items() if value is not None
    ]
    return "?" + "&".join(pairs) if pairs else ""
