"""BuildKit's records become the lines that a person would have seen."""

import base64

import pytest

from images.buildkit_progress import ProgressDecoder, fields


def number(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def text(field: int, value: str | bytes) -> bytes:
    body = value.encode() if isinstance(value, str) else value
    return number(field << 3 | 2) + number(len(body)) + body


def flag(field: int) -> bytes:
    return number(field << 3) + b"\1"


def aux(*parts: bytes) -> str:
    return base64.b64encode(b"".join(parts)).decode()


def vertex(digest: str, name: str, *more: bytes) -> bytes:
    return text(1, text(1, digest) + text(3, name) + b"".join(more))


def log(digest: str, said: str) -> bytes:
    return text(3, text(1, digest) + flag(3) + text(4, said))


STARTED = text(5, flag(1))


def test_a_step_is_announced_once_when_it_starts() -> None:
    trace = ProgressDecoder()
    assert list(trace.lines(aux(vertex("d1", "RUN pip")))) == []
    assert list(trace.lines(aux(vertex("d1", "RUN pip", STARTED)))) == ["=> RUN pip"]
    assert list(trace.lines(aux(vertex("d1", "RUN pip", STARTED)))) == []


def test_a_cached_step_says_so() -> None:
    assert list(ProgressDecoder().lines(aux(vertex("d1", "RUN pip", flag(4))))) == ["=> RUN pip (cached)"]


def test_half_lines_wait_for_their_rest() -> None:
    trace = ProgressDecoder()
    assert list(trace.lines(aux(log("d1", "one\ntw"), log("d2", "other\n")))) == ["one", "other"]
    assert list(trace.lines(aux(log("d1", "o\n")))) == ["two"]


def test_a_failed_step_shows_what_it_printed_last_and_then_its_error() -> None:
    trace = ProgressDecoder()
    list(trace.lines(aux(vertex("d1", "RUN pip", STARTED), log("d1", "no such wheel"))))
    assert list(trace.lines(aux(vertex("d1", "RUN pip", STARTED, text(7, "exit code: 1"))))) == [
        "no such wheel",
        "=> RUN pip: exit code: 1",
    ]


def test_output_that_is_no_text_is_shown_all_the_same() -> None:
    assert list(ProgressDecoder().lines(aux(text(3, text(1, "d1") + text(4, b"\xff\n"))))) == ["�"]


def test_unknown_fields_of_every_kind_are_skipped() -> None:
    unknown = number(99 << 3 | 1) + bytes(8) + number(98 << 3 | 5) + bytes(4) + flag(97) + text(96, "new")
    assert list(ProgressDecoder().lines(aux(unknown, vertex("d1", "RUN pip", STARTED, unknown)))) == [
        "=> RUN pip"
    ]


@pytest.mark.parametrize("broken", [b"\x0a\x05abc", b"\x0a", b"\x80", b"\x0b", b"\x09\0"])
def test_a_torn_record_is_an_error_and_not_a_guess(broken: bytes) -> None:
    with pytest.raises(ValueError, match="progress record"):
        fields(broken)


def test_a_number_where_a_message_belongs_is_an_error() -> None:
    with pytest.raises(ValueError, match="a number where"):
        list(ProgressDecoder().lines(aux(flag(1))))
