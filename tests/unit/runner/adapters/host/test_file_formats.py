"""Headers that no library has written: a checkpoint of a program may say anything."""

import struct
from pathlib import Path
from typing import Final

import pytest

from runner.adapters.host.file_formats import find_damage


def safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def npy(kind: bytes, shape: bytes) -> bytes:
    header = b"{'descr': '<f%s', 'fortran_order': False, 'shape': (%s), }" % (kind, shape)
    return b"\x93NUMPY\x01\x00v\x00" + header + b" " * 100


UNREADABLE: Final = {
    "no end": b'{"a": {"data_offsets": [0, Infinity]}}',
    "too large": b'{"a": {"data_offsets": [0, 1e999]}}',
    "no number": b'{"a": {"data_offsets": [0, NaN]}}',
    "digits": b'{"a": {"data_offsets": [0, %s]}}' % (b"9" * 5000),
    "a list": b"[]",
    "a number": b"5",
    "a text": b'{"a": "data_offsets"}',
    "deep": b"[" * 100_000,
    "deep names": b'{"a":' * 50_000,
    "no text": b"\xff\xfe",
}
ODD: Final = {
    "digits.npy": npy(b"8", b"9" * 5000 + b","),
    "many.npy": npy(b"8", b"9," * 60),
    "wide.npy": npy(b"9" * 4400, b"1,"),
    "end.h5": b"\x89HDF\r\n\x1a\n" + b"\xff" * 60,
    "deep.json": b"[" * 200_000,
    "digits.json": b"9" * 5000,
    "half.json": b'"\\ud800"',
    "ends.npz": b"PK\x03\x04" + b"PK\x05\x06" * 50,
}


def damage(place: Path, content: bytes) -> str | None:
    place.write_bytes(content)
    with place.open("rb") as file:
        return find_damage(file.fileno(), place.name)


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_a_header_with_anything_in_it_cannot_be_read(tmp_path: Path, name: str) -> None:
    assert damage(tmp_path / "x.safetensors", safetensors(UNREADABLE[name])) == (
        "has a header that cannot be read"
    )


@pytest.mark.parametrize("name", list(ODD))
def test_an_odd_file_is_whole_or_not_and_no_error(tmp_path: Path, name: str) -> None:
    found = damage(tmp_path / name, ODD[name])
    assert found is None or len(found) < 200
