"""Locks between builds: who can take them."""

from pathlib import Path

from images.file_lock import locked, try_locked


def test_a_lock_is_taken_once_and_free_afterwards(tmp_path: Path) -> None:
    with locked(tmp_path, "base", lambda: None), try_locked(tmp_path, "base") as free:
        assert not free
    with try_locked(tmp_path, "base") as free:
        assert free


def test_nobody_else_can_open_the_file_of_a_lock(tmp_path: Path) -> None:
    """A user who can open it for reading can hold it, and keep every job waiting for its image."""
    (tmp_path / "locks").mkdir(mode=0o755)  # as it was made once
    with try_locked(tmp_path, "base"):
        assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
