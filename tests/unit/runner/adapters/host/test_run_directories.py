"""Disk space of a run directory, whatever its job has put there."""

import os
from pathlib import Path

import pytest

from runner.adapters.host import run_directories
from runner.adapters.host.run_directories import HostRunDirectories
from runner.base.errors import Unavailable
from runner.core.ports.disk_use import DiskUse

ENOUGH = DiskUse(2**40, 10**6)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "7"
    path.mkdir()
    return path


def use(job: Path, most: DiskUse = ENOUGH) -> DiskUse:
    return HostRunDirectories(job.parent).use(job.name, most)


def test_files_and_directories_count_and_empty_files_too(job: Path) -> None:
    (job / "a" / "b").mkdir(parents=True)
    for number in range(5):
        (job / "a" / "b" / str(number)).touch()
    assert use(job).files == 8


def test_a_hole_takes_nothing_and_a_file_with_two_names_counts_its_bytes_once(job: Path) -> None:
    empty = use(job).size
    with (job / "hole").open("wb") as hole:
        hole.truncate(2**33)
    assert use(job).size == empty
    (job / "full").write_bytes(b"x" * 100_000)
    once = use(job).size
    os.link(job / "full", job / "again")
    assert once >= 100_000
    assert use(job).size == once


def test_no_link_is_followed(job: Path) -> None:
    other = job.parent / "other"
    other.mkdir()
    for number in range(50):
        (other / str(number)).touch()
    (job / "link").symlink_to(other)
    assert use(job).files == 2
    job.rename(job.parent / "8")
    job.symlink_to(other)
    assert use(job) == DiskUse()


def test_counting_stops_at_the_limit(job: Path) -> None:
    for number in range(50):
        (job / str(number)).touch()
    assert use(job, DiskUse(2**40, 10)).files == 11


def test_a_directory_that_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert HostRunDirectories(tmp_path).use("1", ENOUGH) == DiskUse()


def test_a_rest_that_cannot_be_removed_keeps_no_other_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / f".removed-{number}").mkdir()

    def remove(path: Path) -> None:
        if path.name == ".removed-1":
            raise Unavailable(f"{path}: Device or resource busy")
        path.rmdir()

    monkeypatch.setattr(run_directories, "_remove", remove)
    HostRunDirectories(tmp_path).sweep()
    assert [path.name for path in tmp_path.iterdir()] == [".removed-1"]
