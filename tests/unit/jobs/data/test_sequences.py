"""Recordings are found, grouped and checked; whatever is wrong is told with file, row and fact."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from jobs.data.sequences import Survey, read, survey
from jobs.training.failures import InvalidSpec

COLUMNS = (0, 2)


def signal(samples: int = 5, columns: int = 3, kind: str = "float32") -> NDArray[np.generic]:
    return np.arange(samples * columns, dtype=kind).reshape(samples, columns)


def found(directory: Path, columns: tuple[int, ...] = COLUMNS) -> Survey:
    return survey(directory, columns, "index.csv", "subject")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    directory = tmp_path / "it's; echo"
    (directory / "sub").mkdir(parents=True)
    np.save(directory / "sub" / "a.npy", signal())
    np.savez(directory / "b.npz", left=signal(6), right=signal(7))
    torch.save({"one": torch.ones(4, 3), "two": torch.ones(3, 3)}, directory / "c.pt")
    return directory


def test_every_array_of_every_file_is_a_recording(three: Path) -> None:
    recordings = found(three).recordings
    assert [(each.path.name, each.key, each.samples) for each in recordings] == [
        ("b.npz", "left", 6),
        ("b.npz", "right", 7),
        ("c.pt", "one", 4),
        ("c.pt", "two", 3),
        ("a.npy", None, 5),
    ]


def test_without_an_index_every_file_is_a_group(three: Path) -> None:
    assert [each.group for each in found(three).recordings] == ["b.npz", "b.npz", "c.pt", "c.pt", "sub/a.npy"]


def test_an_index_says_which_files_and_which_groups(three: Path) -> None:
    (three / "index.csv").write_text("file,subject\nsub/a.npy,7\nc.pt,8\n")
    assert [(each.path.name, each.group) for each in found(three).recordings] == [
        ("a.npy", "7"),
        ("c.pt", "8"),
        ("c.pt", "8"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_header_of_an_index(three: Path) -> None:
    (three / "index.csv").write_text("\ufefffile,subject\nsub/a.npy,7\n")
    assert [each.group for each in found(three).recordings] == ["7"]


def test_the_chosen_columns_are_read_as_float32(three: Path) -> None:
    recordings = found(three).recordings
    assert read(recordings[-1], COLUMNS).tolist() == signal()[:, [0, 2]].tolist()
    assert read(recordings[1], COLUMNS).shape == (7, 2)
    assert {read(each, COLUMNS).dtype for each in recordings} == {np.dtype(np.float32)}


@pytest.mark.parametrize("kind", ["float64", "float16", "int16", "uint8"])
def test_any_real_numbers_will_do(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "a.npy", signal(kind=kind))
    assert read(found(tmp_path).recordings[0], COLUMNS).tolist() == signal()[:, [0, 2]].tolist()


@pytest.mark.parametrize(
    "stored", [torch.ones(4, 3), [torch.ones(4, 3)], torch.ones(4, 3, dtype=torch.bfloat16)]
)
def test_a_tensor_and_a_list_of_tensors_will_do(tmp_path: Path, stored: object) -> None:
    torch.save(stored, tmp_path / "a.pt")
    (recording,) = found(tmp_path).recordings
    assert read(recording, COLUMNS).tolist() == [[1, 1]] * 4


def test_the_signature_depends_on_content_and_not_on_the_place(three: Path, tmp_path: Path) -> None:
    before = found(three).sha256
    moved = three.rename(tmp_path / "elsewhere")
    assert found(moved).sha256 == before
    assert found(moved, (0, 1)).sha256 != before
    np.save(moved / "sub" / "a.npy", signal() + 1)
    assert found(moved).sha256 != before


def test_a_recording_that_changes_during_the_training_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", signal(5))
    (recording,) = found(tmp_path).recordings
    np.save(tmp_path / "a.npy", signal(4))
    with pytest.raises(InvalidSpec, match=r"a\.npy: 4 samples where there were 5"):
        read(recording, COLUMNS)
    np.savez(tmp_path / "a.npz", signal(5))
    (tmp_path / "a.npz").replace(tmp_path / "a.npy")
    with pytest.raises(InvalidSpec, match=r"a\.npy: no array; every recording is one"):
        read(recording, COLUMNS)


@pytest.mark.parametrize(
    ("array", "fact"),
    [
        (np.array([[1, 2, 3], [4, 5, np.nan]]), r"a\.npy: row 1, column 2: nan; repair"),
        (np.array([[1, 2, 3], [-np.inf, 5, 6]]), r"a\.npy: row 1, column 0: -inf"),
        (np.array([[1, 2, 1e300]]), r"a\.npy: row 0, column 2: inf"),
        (np.ones((4, 2)), r"a\.npy: 2 columns; the plan names column 2"),
        (np.ones(4), r"a\.npy: shape \(4,\); a recording is \(samples, columns\)"),
        (np.ones((0, 3)), r"a\.npy: no samples"),
        (np.array([["x", "y", "z"]]), r"a\.npy: type <U1; a recording holds real numbers"),
        (np.ones((2, 3), dtype=bool), r"a\.npy: type bool"),
        (np.ones((2, 3), dtype=complex), r"a\.npy: type complex128"),
    ],
)
def test_a_bad_array_is_told_with_file_place_and_fact(
    tmp_path: Path, array: NDArray[np.generic], fact: str
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InvalidSpec, match=fact):
        found(tmp_path)


def test_a_value_in_a_column_that_is_not_used_does_not_matter(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, np.nan, 3]]))
    assert found(tmp_path).recordings[0].samples == 1


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(InvalidSpec, match=r"a\.npy: cannot be read as \.npy: Object arrays"):
        found(tmp_path)


@pytest.mark.parametrize("name", ["sub/a.npy", "b.npz", "c.pt"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_truncated_file_is_told_by_name(three: Path, name: str, share: float) -> None:
    whole = (three / name).read_bytes()
    (three / name).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InvalidSpec, match=rf"{Path(name).name}: cannot be read as .*is it cut off\?"):
        found(three)


@pytest.mark.parametrize("name", ["a.npy", "b.npz"])
def test_an_array_or_an_archive_is_read_by_its_content_whatever_its_suffix(tmp_path: Path, name: str) -> None:
    (np.savez if name == "a.npy" else np.save)(tmp_path / "x", signal())
    next(tmp_path.iterdir()).rename(tmp_path / name)
    (recording,) = found(tmp_path).recordings
    assert np.array_equal(read(recording, COLUMNS), signal()[:, COLUMNS])


@pytest.mark.parametrize("name", ["a.npy", "b.npz", "c.pt", "old.pt"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_with_a_flipped_bit_is_read_or_told_in_one_line(tmp_path: Path, name: str) -> None:
    path, stored = tmp_path / name, [torch.tensor(signal())]
    if path.suffix == ".pt":
        torch.save(stored, path, _use_new_zipfile_serialization=name != "old.pt")
    else:
        (np.save if name == "a.npy" else np.savez_compressed)(path, signal())
    whole = path.read_bytes()
    for place in range(min(len(whole), 600)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            found(tmp_path)
        except InvalidSpec as error:
            assert "\n" not in str(error)  # noqa: PT017 - it may be read as well


def test_what_is_no_array_in_an_archive_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(InvalidSpec, match=r"a\.npz\[notes\.txt\]: no array; every recording is one"):
        found(tmp_path)


@pytest.mark.parametrize(
    ("stored", "fact"),
    [
        (torch.ones(4, 3).to_sparse(), r"a\.pt: can't convert Sparse .*; a recording is a dense tensor"),
        ({"acc": [torch.ones(4, 3)]}, r"a\.pt: acc is a list; it must be a tensor"),
        (7, r"a\.pt: the file is a int"),
    ],
)
def test_other_things_than_tensors_are_told(tmp_path: Path, stored: object, fact: str) -> None:
    torch.save(stored, tmp_path / "a.pt")
    with pytest.raises(InvalidSpec, match=fact):
        found(tmp_path)


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        ("", r"index\.csv:1: no column 'file'; there are none"),
        ("file,person\nb.npz,1\n", r"index\.csv:1: no column 'subject'; there are file, person"),
        ("file,subject\nb.npz,1\nd.npz,1\n", r"index\.csv:3: 'd\.npz' is not there"),
        ("file,subject\nb.npz,1\nb.npz\n", r"index\.csv:3: no subject"),
        ("file,subject\n../x.npy,1\n", r"index\.csv:2: '\.\./x\.npy' lies outside the directory"),
        ("file,subject\nindex.csv,1\n", r"index\.csv:2: 'index\.csv' is none of \.npy, \.npz, \.pt"),
        ("file,subject\n", r"no \.npy, \.npz, \.pt file"),
    ],
)
def test_a_bad_index_is_told_with_its_line(three: Path, table: str, fact: str) -> None:
    (three / "index.csv").write_text(table)
    with pytest.raises(InvalidSpec, match=fact):
        found(three)


def test_an_index_that_is_no_text_is_told(three: Path) -> None:
    (three / "index.csv").write_bytes(b"file,subject\n\xff\xfe,1\n")
    with pytest.raises(InvalidSpec, match=r"index\.csv: .*must be CSV in UTF-8"):
        found(three)


def test_an_empty_or_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no \.npy, \.npz, \.pt file below"):
        found(tmp_path)
    with pytest.raises(InvalidSpec, match=r"nowhere: no such directory"):
        found(tmp_path / "nowhere")
