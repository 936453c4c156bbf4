"""The log of a daemon as a file of its own: it is renamed when it has become large."""

import io
import os
from pathlib import Path

import pytest

from runner.base import logging as logs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.log"


def opened(path: Path) -> io.BufferedWriter:
    return open(path, "ab")  # noqa: PTH123  the stream closes it


def test_a_large_file_is_renamed_and_a_limited_number_is_kept(path: Path) -> None:
    for number in range(8):
        with logs.RotatedStream(opened(path), path, max_bytes=10) as stream:
            stream.write(f"line {number} is long\n")
    kept = sorted(each.name for each in path.parent.iterdir())
    assert kept == ["daemon.log", *(f"daemon.log.{number}" for number in range(1, logs.KEPT_FILES + 1))]
    assert path.with_name("daemon.log.1").read_text() == "line 7 is long\n"
    assert path.read_text() == ""


def test_a_file_that_somebody_else_has_renamed_is_left_to_them(path: Path) -> None:
    with logs.RotatedStream(opened(path), path, max_bytes=1) as stream:
        path.rename(path.with_name("theirs"))
        path.write_text("")
        stream.write("long enough\n")
        stream.write("still here\n")
    assert path.with_name("theirs").read_text() == "long enough\nstill here\n"
    assert not path.with_name("daemon.log.1").exists()


def test_standard_error_goes_on_in_the_new_file(path: Path) -> None:
    kept = os.dup(2)
    try:
        with opened(path) as file:
            os.dup2(file.fileno(), 2)
            with logs.RotatedStream(os.fdopen(os.dup(2), "wb"), path, max_bytes=10) as stream:
                stream.write("a line that is long\n")
            os.write(2, b"after\n")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert path.read_text() == "after\n"


def test_a_daemon_rotates_only_its_own_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as file:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(file))
        stream = logs.standard_error(path)
        assert isinstance(stream, logs.RotatedStream)
    with opened(path.with_name("journal")) as file:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(file))
        streams = [logs.standard_error(path), logs.standard_error(path.with_name("absent"))]
        assert not any(isinstance(stream, logs.RotatedStream) for stream in streams)
    monkeypatch.undo()
