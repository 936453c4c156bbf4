"""Terminals in a directory of a job, which may hold anything."""

import os
import socket
from pathlib import Path

import pytest

from runner.adapters.host import terminal


def test_a_directory_of_any_number_of_names_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "terminals"
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(place / "main"))
        assert terminal.names(place) == ("main",)
        assert terminal.touched(place) == (place / "main").stat().st_mtime
        for number in range(3 * terminal.MOST_LISTED):
            (place / str(number)).touch()
        monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("all names are read"))
        assert set(terminal.names(place)) <= {"main"}
