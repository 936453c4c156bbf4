"""NumPy's file format without NumPy: the host must not need it to prepare a data set.

Reading is for one case only: an object array, which is a pickle inside an ``.npy`` file.
The unpickler knows the four names that such a file needs and builds plain values for
them, so nothing of the file is ever executed.  Format: NEP 1 (version 1.0).
"""

import io
import pickle
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_ALIGNMENT: Final = 64
_NUMBERS: Final = {"f8": "d", "f4": "f", "i8": "q", "i4": "i"}


class UnreadableArray(Exception):
    """A file that is no array of the kind that is read here; the text says why."""


@dataclass(slots=True)
class Dtype:
    """The type of an array's elements, such as ``f8``."""

    kind: str
    order: str = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = str(state[1])


@dataclass(slots=True)
class Array:
    """An array as its file describes it; elements are made when they are asked for."""

    shape: tuple[int, ...] = ()
    dtype: Dtype | None = None
    fortran: bool = False
    content: bytes | list[Any] = field(default=b"", repr=False)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, self.shape, self.dtype, self.fortran, self.content = state

    def numbers(self) -> Sequence[float]:
        """Return the elements in C order, whatever the file's order is."""
        if self.dtype is None or isinstance(self.content, list) or self.dtype.kind not in _NUMBERS:
            raise UnreadableArray(f"an array of {self.dtype} where numbers belong")
        flat: array[Any] = array(_NUMBERS[self.dtype.kind])
        flat.frombytes(self.content)
        if (self.dtype.order == ">") != (sys.byteorder == "big"):
            flat.byteswap()
        return _transposed(flat, self.shape) if self.fortran and len(self.shape) == 2 else flat


def _transposed(flat: "array[Any]", shape: tuple[int, ...]) -> "array[Any]":
    rows, columns = shape
    turned = array(flat.typecode, bytes(len(flat) * flat.itemsize))
    for column in range(columns):
        turned[column::columns] = flat[column * rows : (column + 1) * rows]
    return turned


def read_object(raw: bytes) -> Any:  # noqa: ANN401  (whatever was pickled)
    """Return the one object in an ``.npy`` file of object type and no dimensions.

    Raises:
        UnreadableArray: it is no such file, or asks for anything but arrays of numbers and plain values.
    """
    if not raw.startswith(_MAGIC):
        raise UnreadableArray("no .npy file of version 1.0")
    start = len(_MAGIC) + 2 + int.from_bytes(raw[len(_MAGIC) : len(_MAGIC) + 2], "little")
    if b"'|O'" not in raw[:start]:
        raise UnreadableArray("no array of objects")
    try:
        array_ = _Plain(io.BytesIO(raw[start:])).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UnreadableArray(f"its pickle cannot be read: {error}") from error
    if not isinstance(array_, Array) or not isinstance(array_.content, list) or len(array_.content) != 1:
        raise UnreadableArray("not exactly one object")
    return array_.content[0]


class _Plain(pickle.Unpickler):
    """Builds arrays and plain values; every other name is refused before anything is called."""

    def find_class(self, module_name: str, global_name: str, /) -> Callable[..., Any]:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module_name}.{global_name}, which is not an array"
            ) from None


def _reconstruct(kind: object, shape: object, code: object) -> Array:
    if kind is not Array:
        raise pickle.UnpicklingError(f"an array of class {kind!r} ({shape!r}, {code!r})")
    return Array()


def _dtype(kind: str, align: object, copy: object) -> Dtype:
    del align, copy
    return Dtype(str(kind))


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


_ALLOWED: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}
"""Names that Python 2's pickle protocol needs for arrays of numbers; none of them can do any harm."""


def float32_file(values: Sequence[float], shape: tuple[int, ...]) -> bytes:
    """Return the content of an ``.npy`` file with little-endian float32 numbers in C order."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    unpadded = len(_MAGIC) + 2 + len(header) + 1
    header += b" " * (-unpadded % _ALIGNMENT) + b"\n"
    return _MAGIC + len(header).to_bytes(2, "little") + header + numbers.tobytes()
