import socket

import pytest

from runner.base.errors import Unavailable
from runner.client.http import ErrorResponse, Response, exchange, query_string, quote_path, raise_for_error


def asked(raw: bytes, method: str = "GET", body: bytes | None = None) -> tuple[Response, bytes]:
    """Return what ``exchange`` makes of the raw response, and the request that it sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)
        answer = exchange(ours, method, "/v1/version", body)
        return answer, theirs.recv(65536)


def test_a_body_of_known_length_is_read_and_nothing_beyond_it() -> None:
    answer, _ = asked(b"HTTP/1.1 201 Created\r\nX-Runner-Attempt: 3\r\nContent-Length: 2\r\n\r\n{}garbage")
    assert answer == Response(201, {"x-runner-attempt": "3", "content-length": "2"}, b"{}")


def test_a_chunked_body_is_put_together_and_extensions_and_trailers_are_ignored() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
    answer, _ = asked(raw + b"5;x=y\r\nhello\r\nB\r\n big\r\nworld\r\n0\r\nTrailer: 1\r\n\r\n")
    assert answer.body == b"hello big\r\nworld"


def test_a_body_without_length_ends_with_the_connection() -> None:
    assert asked(b"HTTP/1.1 200\r\n\r\nall of it")[0].body == b"all of it"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\r\n\r\n",
        b"X" * 70_000,
    ],
)
def test_what_is_cut_short_or_no_http_is_an_error_and_never_half_an_answer(raw: bytes) -> None:
    with pytest.raises(OSError, match=r"cut short|not an HTTP response"):
        asked(raw)


def test_a_request_carries_its_body_with_its_length() -> None:
    _, sent = asked(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "POST", '{"ä": 1}'.encode())
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/version HTTP/1.1\r\n")
    assert b"Content-Length: 9\r\n" in head + b"\r\n"
    assert body == '{"ä": 1}'.encode()


def test_a_reference_cannot_leave_its_place_in_the_url() -> None:
    assert quote_path("a/../b?c=d e\n%ü") == "a%2F..%2Fb%3Fc%3Dd%20e%0A%25%C3%BC"
    assert query_string({"job": "a&b", "attempt": None, "wait": 0.5}) == "?job=a%26b&wait=0.5"
    assert query_string({"attempt": None}) == ""


def test_the_lines_of_an_error_are_kept_and_its_message_stands_in_for_missing_ones() -> None:
    with pytest.raises(ErrorResponse) as caught:
        raise_for_error(
            Response(422, {}, b'{"error": {"kind": "usage", "lines": ["a", "b"], "exit_code": 2}}')
        )
    assert (caught.value.kind, caught.value.lines, caught.value.code) == ("usage", ["a", "b"], 2)
    with pytest.raises(ErrorResponse, match="only this"):
        raise_for_error(
            Response(403, {}, b'{"error": {"kind": "refused", "message": "only this", "exit_code": 3}}')
        )


@pytest.mark.parametrize(
    "body", [b"Internal Server Error", b'{"detail": "Not Found"}', b"[]", b'{"error": 1}']
)
def test_an_error_in_another_form_is_shown_as_it_is(body: bytes) -> None:
    with pytest.raises(Unavailable, match="answered 500"):
        raise_for_error(Response(500, {}, body))
