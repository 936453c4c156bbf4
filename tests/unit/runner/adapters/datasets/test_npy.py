import io
import pickle
from array import array

import numpy as np
import pytest

from runner.adapters.datasets.npy import Array, UnreadableArray, float32_file, read_object


def saved(value: object) -> bytes:
    """Return what NumPy writes for one object, the way the packages' files were written."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    # NumPy 2 calls its own module otherwise; the files are older.
    body = pickle.dumps(np.array(value, dtype=object), protocol=2).replace(b"numpy._core.", b"numpy.core.")
    return header.getvalue() + body


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f8", ">f8", "<f4", "<i8"])
def test_numbers_come_back_in_c_order_whatever_the_file_holds(order: str, kind: str) -> None:
    numbers = np.arange(12).reshape(4, 3)
    found = read_object(saved({"x": np.asarray(numbers, dtype=kind, order=order)}))["x"]  # type: ignore[call-overload]
    assert isinstance(found, Array)
    assert found.shape == (4, 3)
    assert list(found.numbers()) == numbers.ravel().tolist()


def test_plain_values_around_the_arrays_come_back() -> None:
    assert read_object(saved({"labels": ["a", "b"], "n": 3})) == {"labels": ["a", "b"], "n": 3}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not numpy",
        b"\x93NUMPY\x01\x00",
        float32_file((1.0,), (1,)),
        saved({"x": 1})[:-4],
        saved({"x": 1})[:140],
    ],
)
def test_what_is_no_object_array_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableArray):
        read_object(raw)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("executed",))


def test_nothing_that_a_file_names_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnreadableArray, match=r"builtins\.print|__builtin__\.print"):
        read_object(saved({"x": Evil()}))
    assert capsys.readouterr().out == ""


def test_only_the_encoding_that_bytes_need_is_known() -> None:
    hostile = saved({"x": np.zeros(1)}).replace(b"latin1", b"utf_16")
    with pytest.raises(UnreadableArray, match="utf_16"):
        read_object(hostile)


def test_only_plain_arrays_are_reconstructed() -> None:
    hostile = saved({"x": np.zeros(1)}).replace(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n")
    with pytest.raises(UnreadableArray, match="array of class"):
        read_object(hostile)


def test_an_array_of_text_has_no_numbers() -> None:
    found = read_object(saved({"x": np.array(["ab", "c"])}))["x"]
    with pytest.raises(UnreadableArray, match="where numbers belong"):
        found.numbers()


def test_numpy_reads_what_is_written_here() -> None:
    written = np.load(io.BytesIO(float32_file(array("d", [0.1, -2, 3e9, 4, 5, 6]), (2, 3))))
    assert written.dtype == np.dtype("<f4")
    assert written.tolist() == np.array([[0.1, -2, 3e9], [4, 5, 6]], dtype=np.float32).tolist()


def test_the_numbers_begin_where_memory_maps_want_them() -> None:
    assert (len(float32_file((1.0, 2.0), (2,))) - 8) % 64 == 0
