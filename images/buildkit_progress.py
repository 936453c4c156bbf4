"""Decodes BuildKit's progress records to lines of text.

``POST /build?version=2`` answers with JSON lines.  Each contains a record (protobuf
``moby.buildkit.v1.StatusResponse``) in base64, and the output of the commands is nowhere else.  Only the
fields that a log needs are read, by number; protobuf allows to skip unknown fields.
"""

import base64
from collections.abc import Iterator
from typing import Final, TypeAlias

Fields: TypeAlias = dict[int, list[bytes | int]]

_VERTEX, _LOG = 1, 3  # of StatusResponse
_DIGEST, _NAME, _CACHED, _STARTED, _ERROR = 1, 3, 4, 5, 7  # of Vertex
_LOG_VERTEX, _LOG_TEXT = 1, 4  # of VertexLog

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}


class ProgressDecoder:
    """Decodes the records of one build; keeps incomplete lines, and which steps have been announced."""

    def __init__(self) -> None:
        self._announced: set[str] = set()
        self._failed: set[str] = set()
        self._incomplete: dict[str, str] = {}

    def lines(self, aux: str) -> Iterator[str]:
        """Yield the complete lines of one record.

        Raises:
            ValueError: the record is malformed.
        """
        record = fields(base64.b64decode(aux, validate=True))
        for vertex in record.get(_VERTEX, []):
            yield from self._vertex(fields(_bytes(vertex)))
        for log in record.get(_LOG, []):
            yield from self._log(fields(_bytes(log)))

    def flush(self) -> Iterator[str]:
        """Yield the lines that ended without a newline."""
        yield from filter(None, self._incomplete.values())
        self._incomplete.clear()

    def _vertex(self, vertex: Fields) -> Iterator[str]:
        address, name = _text(vertex, _DIGEST), _text(vertex, _NAME)
        if address not in self._announced and (_STARTED in vertex or _CACHED in vertex):
            self._announced.add(address)
            yield f"=> {name}{' (cached)' if vertex.get(_CACHED) else ''}"
        error = _text(vertex, _ERROR)
        if error and address not in self._failed:
            self._failed.add(address)
            yield from self.flush()
            yield f"=> {name}: {error}"

    def _log(self, log: Fields) -> Iterator[str]:
        address = _text(log, _LOG_VERTEX)
        *complete, incomplete = (self._incomplete.pop(address, "") + _text(log, _LOG_TEXT)).split("\n")
        self._incomplete[address] = incomplete
        yield from complete


def fields(message: bytes) -> Fields:
    """Return the undecoded fields of a protobuf message by number.

    Raises:
        ValueError: the bytes end in the middle of a field.
    """
    found: Fields = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _value(message, at, key & 7)
        found.setdefault(key >> 3, []).append(value)
    return found


def _value(message: bytes, at: int, wire: int) -> tuple[bytes | int, int]:
    if wire == _VARINT:
        return _varint(message, at)
    if wire == _LENGTH:
        size, at = _varint(message, at)
    elif wire in _FIXED:
        size = _FIXED[wire]
    else:
        raise ValueError(f"progress record: wire type {wire}")
    if at + size > len(message):
        raise ValueError("progress record: ends in the middle of a field")
    return message[at : at + size], at + size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("progress record: ends in the middle of a number")


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("progress record: a number where a message belongs")
    return value


def _text(message: Fields, number: int) -> str:
    return _bytes(message.get(number, [b""])[-1]).decode(errors="replace")
