"""The locks that a machine has, and what each of them installs."""

from pathlib import Path

import pytest

from images.errors import BuildFailed
from images.lock_files import LockFile, available, index_of, named
from images.settings import ImageSettings

OLDER = "# made up\ntorch==2.13.0+cu126 \\\n    --hash=sha256:00\nnvidia-cuda-runtime-cu12==12.6.77\n"


@pytest.fixture
def settings(tmp_path: Path) -> ImageSettings:
    (tmp_path / "cuda-12.6.txt").write_text(OLDER)
    (tmp_path / "cuda-old.txt").write_text("# no name of a lock\n")
    return ImageSettings(lock_dir=tmp_path)


def test_the_newest_lock_comes_first(settings: ImageSettings) -> None:
    locks = available("cuda", settings)
    assert [(lock.name, lock.version, lock.build) for lock in locks] == [
        ("cuda", (13, 0), None), ("cuda-12.6", (12, 6), "cu126"),
    ]  # fmt: skip
    assert [lock.name for lock in available("cpu", settings)] == ["cpu"]
    assert {lock.accelerator for lock in locks} == {"cuda"}


def test_the_shipped_locks_say_what_they_are_for() -> None:
    [cpu], [rocm] = available("cpu", ImageSettings()), available("rocm", ImageSettings())
    assert (cpu.version, cpu.build, rocm.version, rocm.build) == (None, None, (7, 2), "rocm7.2")


def test_a_lock_of_the_site_hides_the_shipped_one(settings: ImageSettings, tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text("torch==2.13.0\n")
    assert [lock.text for lock in available("cpu", settings)] == [b"torch==2.13.0\n"]


def test_the_settings_may_name_one(settings: ImageSettings, tmp_path: Path) -> None:
    assert named("cuda", settings) is None
    chosen = named("cuda", ImageSettings(lock_dir=tmp_path, locks={"cuda": "cuda-12.6"}))
    assert chosen is not None
    assert chosen.version == (12, 6)
    with pytest.raises(BuildFailed, match=r"cuda-13.2.txt does not exist; runner images lock cuda-13.2"):
        named("cuda", ImageSettings(lock_dir=tmp_path, locks={"cuda": "cuda-13.2"}))


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        ({}, "https://download.pytorch.org/whl/cu126"),
        ({"cuda": "https://mirror/cuda"}, "https://mirror/cuda"),
        ({"cuda": "https://mirror/cuda", "cuda-12.6": "https://mirror/126"}, "https://mirror/126"),
        ({"cuda": None}, None),
        ({"rocm": "https://mirror/rocm"}, "https://download.pytorch.org/whl/cu126"),
    ],
)
def test_each_accelerator_has_an_index_of_its_own(
    indexes: dict[str, str | None], expected: str | None
) -> None:
    lock = LockFile("cuda-12.6", OLDER.encode())
    assert index_of(lock, ImageSettings(indexes=indexes)) == expected


def test_a_lock_without_a_build_needs_no_index(settings: ImageSettings) -> None:
    assert index_of(available("cuda", settings)[0], settings) is None
