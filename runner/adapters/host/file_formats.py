"""Detection of truncated files that programs have written, as far as the format tells.

Only the ends of files are read: a format that ends with an index, or begins with its length, shows that
writing was broken off. What the content means is the program's business. Formats without such a sign are
taken as they are.
"""

import json
import math
import os
import re
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from runner.adapters.host.program_files import open_below
from runner.base.readable import readable_duration

MAX_HEADER_BYTES: Final = 16 * 1024**2
"""A longer header of a safetensors file is not read, and a longer JSON file is not parsed."""

READ_CPU_S: Final = 60.0
"""Processor time for the files of one checkpoint; more may be in them than a whole one ever has."""

_DIGITS: Final = re.compile(r"[0-9]+")
_ZIP: Final = b"PK\x03\x04"
_ZIP_END: Final = struct.Struct("<4s4H2IH")  # the end of the central directory, without its comment
_COMMENT_BYTES: Final = 65535
_NEVER_EMPTY: Final = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".json", ".pkl", ".pickle", ".joblib"),
    *(".h5", ".hdf5", ".keras", ".msgpack", ".onnx", ".gguf", ".distcp", ".zip", ".tar", ".gz"),
)
"""Formats of which an empty file is none; a mark such as ``_SUCCESS`` or ``__init__.py`` may be empty."""

_NEVER_ZERO: Final = tuple(each for each in _NEVER_EMPTY if each not in {".bin", ".distcp"})
"""Formats that do not begin with zeros: such a file was not yet on the disk when the machine went down."""

_PICKLES: Final = (".pkl", ".pickle", ".joblib")
_PROTOCOLS: Final = tuple(bytes((0x80, number)) for number in range(2, 6))
_LEGACY_TORCH: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Format of ``torch.save`` before its archives: a pickle, with the weights behind it."""

_NPY_HEADER: Final = re.compile(
    rb"\x93NUMPY\x01\0..{'descr': '[<>|][biufcSV](\d{1,6})', 'fortran_order': \w{4,5},"
    rb" 'shape': \(([\d, ]*)\)",
    re.DOTALL,
)
_OF: Final = re.compile(r"([0-9]{5})(-of-[0-9]{5})(?![0-9])")
"""The number of a part in the name of a file, and how many there are."""

_GZIP: Final = b"\x1f\x8b\x08"
_ENDS: Final = {b"\xfd7zXZ\0": b"YZ", b"PAR1": b"PAR1", b"ARROW1\0\0": b"ARROW1"}
"""Ends of a file of xz, Parquet and Arrow, by its beginning."""

_TAR: Final = slice(257, 262)  # the place of b"ustar"
_TAR_END: Final = bytes(1024)
_FRAMED: Final = (b"\x80\x04\x95", b"\x80\x05\x95")
"""The beginning of a pickle whose length follows, up to the first large object in it."""

_UNPACKED: Final = "ends in the middle of what is compressed"
_PIECE_BYTES: Final = 1024**2

MAX_UNPACKED_BYTES: Final = 256 * 1024**2
"""Bytes that are unpacked of a file; one that has more is taken as it is."""

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_HDF5_END: Final = {0: 40, 1: 44, 2: 28, 3: 28}
"""The place of the length of the file, by the version of its first block."""

_UNDEFINED: Final = 2**63

_BROKEN_OFF: Final = 10
"""Characters from the place of an error to the end of a JSON text that was broken off in a word."""


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
        begin = os.pread(fd, 512, 0)
        if name.endswith(_NEVER_ZERO) and not begin.strip(b"\0") and not _has_user_block(fd):
            return "begins with zeros"
        if begin.startswith(_ZIP):
            return _of_zip(fd, size)
        if name.endswith(".safetensors"):
            return _of_safetensors(fd, size)
        if name.endswith(".json"):
            return _of_json(fd, size)
        if _is_pickle(begin, name):
            return None if os.pread(fd, 1, size - 1) == b"." else "ends in the middle of its pickle"
        if begin.startswith(_FRAMED):
            return _of_frame(fd, begin, size)
        if begin.startswith(_GZIP):
            return _of_gzip(fd)
        end = next((end for mark, end in _ENDS.items() if begin.startswith(mark)), b"")
        if begin[_TAR] == b"ustar":
            end = _TAR_END
        if os.pread(fd, len(end), max(size - len(end), 0)) != end:
            return "has no mark of its end"
        expected = _length_in(begin)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if size >= expected else f"has {size} bytes of {expected}"


def shows_its_end(fd: int, name: str) -> bool:
    """Return True if the format of an open file tells when writing was broken off."""
    try:
        begin = os.pread(fd, len(_LEGACY_TORCH), 0)
    except OSError:
        return False
    return name.endswith((".safetensors", ".json")) or begin.startswith(_ZIP) or _is_pickle(begin, name)


def find_missing_part(paths: Collection[str], read: Callable[[str], bytes]) -> str | None:
    """Return a file that the index of a checkpoint in parts names, or that index, if it is not there.

    Args:
        paths: The files of a checkpoint that is a directory.
        read: Returns the content of one of them.

    Raises:
        OSError: an index cannot be read.
    """
    counts = Counter(_OF.sub(r"#\2", path) for path in paths)
    for path in paths:
        place = PurePosixPath(path).parent
        if (of := _OF.search(path)) and counts[_OF.sub(r"#\2", path)] < int(of[2][4:]):
            return f"some of the {int(of[2][4:])} parts of {path}"
        if path.endswith(".distcp") and str(place / ".metadata") not in paths:
            return str(place / ".metadata")
        if path.endswith(".index.json"):
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                parts = {str(place / str(each)) for each in json.loads(read(path))["weight_map"].values()}
                if missing := sorted(parts.difference(paths)):
                    return missing[0]
    return None


def find_missing_rank(names: Collection[str], before: Collection[str]) -> str | None:
    """Return a file of the one before, of several that differ in a number, if only others are there."""
    own = _alike(names)
    for alike, files in _alike(before).items():
        if own.get(alike, files) < files:
            return min(files - own[alike])
    return None


def _alike(names: Collection[str]) -> dict[str, set[str]]:
    """Return names by what they have in common, apart from numbers."""
    found: dict[str, set[str]] = {}
    for name in names:
        found.setdefault(_DIGITS.sub("#", name), set()).add(name)
    return found


def _is_pickle(begin: bytes, name: str) -> bool:
    """Return True for a plain pickle, not one that is compressed or has more behind it."""
    return name.endswith(_PICKLES) and begin.startswith(_PROTOCOLS) and not begin.startswith(_LEGACY_TORCH)


def _length_in(begin: bytes) -> int:
    """Return the bytes that a file of HDF5 or NumPy has by its first block, 0 for any other format."""
    at = _HDF5_END.get(begin[len(_HDF5)]) if begin.startswith(_HDF5) and len(begin) > len(_HDF5) else None
    if at is not None:
        length = int.from_bytes(begin[at : at + 8], "little")
        return length if 0 < length < _UNDEFINED else 0
    found = _NPY_HEADER.match(begin)
    if found is None:
        return 0
    count = math.prod(int(each) for each in found[2].split(b",") if each.strip())
    header = int.from_bytes(begin[8:10], "little")
    return 10 + header + count * int(found[1])


def _has_user_block(fd: int) -> bool:
    """Return True for a file of HDF5 that begins with a block of its user, which may be empty."""
    return any(os.pread(fd, len(_HDF5), 512 << doubled) == _HDF5 for doubled in range(16))


def _of_frame(fd: int, begin: bytes, size: int) -> str | None:
    """Return the damage of a pickle by any name: its first frame, or the file, ends with the end of it."""
    end = 11 + int.from_bytes(begin[3:11], "little")
    is_whole = end <= size and b"." in (os.pread(fd, 1, end - 1), os.pread(fd, 1, size - 1))
    return None if is_whole else "ends in the middle of its pickle"


def _of_gzip(fd: int) -> str | None:
    """Return the damage of a file that gzip has compressed, such as R's ``saveRDS`` writes.

    It has no mark at its end, so it is unpacked, as far as ``MAX_UNPACKED_BYTES`` tell.
    """
    stream, at, unpacked = zlib.decompressobj(wbits=31), 0, 0
    try:
        while unpacked < MAX_UNPACKED_BYTES and not stream.eof:
            if not (piece := stream.unconsumed_tail or os.pread(fd, _PIECE_BYTES, at)):
                return _UNPACKED
            at += 0 if stream.unconsumed_tail else len(piece)
            unpacked += len(stream.decompress(piece, _PIECE_BYTES))
    except zlib.error:
        return _UNPACKED
    return None


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
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return "has a header that cannot be read"
    return None if size >= expected else f"has {size} bytes of {expected}"


def _of_json(fd: int, size: int) -> str | None:
    """Return the damage of a JSON file; lines of JSON, and comments, are no damage."""
    if size > MAX_HEADER_BYTES:
        return None
    text = os.pread(fd, size, 0)
    is_cut = _is_cut(text) and (
        len(lines := text.split(b"\n")) < 2 or _is_cut(lines[0]) or _is_cut(lines[-1] or lines[-2])
    )
    return "is no complete JSON" if is_cut else None


def _is_cut(text: bytes) -> bool:
    """Return True if JSON ends too early; anything else after its beginning is taken as it is."""
    try:
        json.loads(text.decode(json.detect_encoding(text), "replace"))  # whatever it is written in
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :].strip()
        return len(rest) < _BROKEN_OFF or error.msg.startswith("Unterminated") or b"\0" in text
    except (ValueError, RecursionError):
        return True
    return False
