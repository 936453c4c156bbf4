"""Detection of truncated files that programs have written, as far as the format tells.

Only the ends of files are read: a format that ends with an index, or begins with its length, shows that
writing was broken off. What the content means is the program's business. Formats without such a sign are
taken as they are.
"""

import json
import os
import struct
import time
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from runner.adapters.host.program_files import open_below
from runner.base.readable import readable_duration

MAX_HEADER_BYTES: Final = 16 * 1024**2
"""A longer header of a safetensors file is not read, and a longer JSON file is not parsed."""

READ_CPU_S: Final = 60.0
"""Processor time for the files of one checkpoint; more may be in them than a whole one ever has."""

_ZIP: Final = b"PK\x03\x04"
_ZIP_END: Final = struct.Struct("<4s4H2IH")  # the end of the central directory, without its comment
_COMMENT_BYTES: Final = 65535
_NEVER_EMPTY: Final = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".json", ".pkl", ".pickle", ".h5"),
    *(".hdf5", ".keras", ".msgpack", ".onnx", ".gguf", ".distcp", ".zip", ".tar", ".gz"),
)
"""Formats of which an empty file is none; a mark such as ``_SUCCESS`` or ``__init__.py`` may be empty."""

_PICKLES: Final = (".pkl", ".pickle")


def find_first_damage(directory: int, paths: Sequence[str]) -> tuple[int, str] | None:
    """Return the index of the first file that is not whole, and what shows it; None if there is none."""
    until_s = time.process_time() + READ_CPU_S
    for index, path in enumerate(paths):
        if time.process_time() > until_s:
            return index, f"takes more than {readable_duration(READ_CPU_S)} to read with those before it"
        try:
            with open_below(directory, PurePosixPath(path)) as fd:
                fact = find_damage(fd, path)
        except OSError as error:
            fact = f"cannot be read: {error.strerror or error}"
        if fact is not None:
            return index, fact
    return None


def find_damage(fd: int, name: str) -> str | None:
    """Return the sign that an open file is not whole, or None."""
    try:
        size = os.fstat(fd).st_size
        if not size:
            return "is empty" if name.endswith(_NEVER_EMPTY) else None
        if os.pread(fd, 4, 0) == _ZIP:
            return _of_zip(fd, size)
        if name.endswith(".safetensors"):
            return _of_safetensors(fd, size)
        if name.endswith(".json"):
            return _of_json(fd, size)
        if name.endswith(_PICKLES):
            return None if os.pread(fd, 1, size - 1) == b"." else "ends in the middle of its pickle"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def shows_its_end(fd: int, name: str) -> bool:
    """Return True if the format of an open file tells when writing was broken off."""
    try:
        return name.endswith((".safetensors", ".json", *_PICKLES)) or os.pread(fd, 4, 0) == _ZIP
    except OSError:
        return False


def _of_zip(fd: int, size: int) -> str | None:
    """Return the damage of a zip archive: what ``torch.save``, Lightning and NumPy's ``savez`` write."""
    begin = max(size - _ZIP_END.size - _COMMENT_BYTES, 0)
    end = os.pread(fd, size - begin, begin)
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or len(end) - at < _ZIP_END.size:
        return "ends before the index of its archive"
    comment = _ZIP_END.unpack_from(end, at)[-1]
    return None if at + _ZIP_END.size + comment == len(end) else "ends before the index of its archive"


def _of_safetensors(fd: int, size: int) -> str | None:
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if size < 8 or length + 8 > size:
        return "ends within its header"
    if length > MAX_HEADER_BYTES:
        return None
    try:
        entries = json.loads(os.pread(fd, length, 8))
        offsets = [each["data_offsets"][1] for name, each in entries.items() if name != "__metadata__"]
        expected = 8 + length + max(map(int, offsets), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "has a header that cannot be read"
    return None if size >= expected else f"has {size} bytes of {expected}"


def _of_json(fd: int, size: int) -> str | None:
    if size > MAX_HEADER_BYTES:
        return None
    try:
        json.loads(os.pread(fd, size, 0))
    except (ValueError, RecursionError):
        return "is no complete JSON"
    return None
