"""Measuring and removing run directories, however a job has left them."""

import os
from pathlib import Path

import pytest

from runner.adapters.host import run_directories
from runner.adapters.host.run_directories import HostRunDirectories
from runner.base.errors import Unavailable


def test_only_directories_of_jobs_are_listed_the_oldest_first(tmp_path: Path) -> None:
    for name in ("10", "9", ".removed-3", "canary-1"):
        (tmp_path / name).mkdir()
    assert HostRunDirectories(tmp_path).ids() == ("9", "10")
    assert HostRunDirectories(tmp_path / "absent").ids() == ()


def test_a_file_with_two_names_counts_once_and_links_are_not_followed(tmp_path: Path) -> None:
    directory = tmp_path / "1" / "lineages"
    directory.mkdir(parents=True)
    (directory / "a").write_bytes(b"x" * 100_000)
    os.link(directory / "a", directory / "b")
    (tmp_path / "large").write_bytes(b"x" * 1_000_000)
    (directory / "c").symlink_to(tmp_path / "large")
    assert 100_000 <= HostRunDirectories(tmp_path).size("1") < 200_000
    assert HostRunDirectories(tmp_path).size("2") == 0


def test_a_very_deep_directory_is_removed_and_what_links_name_is_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    jobs = tmp_path / "jobs"
    (jobs / "1").mkdir(parents=True)
    (jobs / "1" / "link").symlink_to(outside)
    here = os.open(jobs / "1", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    for _ in range(2):  # it is gone already
        HostRunDirectories(jobs).set_aside("1")
        HostRunDirectories(jobs).remove("1")
    assert not list(jobs.iterdir())
    assert (outside / "kept").exists()


def test_an_interrupted_removal_is_completed_by_the_next_sweep(tmp_path: Path) -> None:
    (tmp_path / ".removed-4" / "rest").mkdir(parents=True)
    HostRunDirectories(tmp_path).sweep()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / ".removed-1" / "rest").mkdir(parents=True)
    with pytest.raises(Unavailable, match="/1: cannot be removed: Directory not empty"):
        HostRunDirectories(tmp_path).set_aside("1")


@pytest.mark.parametrize(
    ("script", "said"),
    [("sleep 9999", "not removed within"), ("yes no | head -c 9000000 >&2; exit 1", "/.removed-1: no;")],
)
def test_a_removal_that_has_no_end_or_complains_without_end_ends(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rm = tmp_path / "bin" / "rm"
    rm.parent.mkdir()
    rm.write_text(f"#!/bin/sh\n{script}\n")
    rm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{rm.parent}:{os.environ['PATH']}")
    if "sleep" in script:
        monkeypatch.setattr(run_directories, "LONGEST_REMOVAL_S", 0.1)
    with pytest.raises(Unavailable, match=said) as refused:
        HostRunDirectories(tmp_path).remove("1")
    assert len(str(refused.value)) < 1000
