from pathlib import Path

import pytest

from runner.adapters.host.log_times import EVERY_S, note_size, size_at


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "1.log-times"


def test_the_size_at_a_time_is_that_of_the_last_note_before_it(log: Path, notes: Path) -> None:
    note_size(notes, log, 1000.0)  # there is no log yet
    for number in range(1, 5):
        log.write_bytes(b"x" * 10 * number)
        note_size(notes, log, 1000.0 + number * EVERY_S)
    assert [size_at(notes, 1000.0 + EVERY_S * at) for at in (0.5, 1, 1.9, 4, 99)] == [0, 10, 10, 40, 40]


def test_a_log_that_does_not_grow_or_grows_often_is_not_noted_each_time(log: Path, notes: Path) -> None:
    log.write_bytes(b"x")
    for now in (1000.0, 1001.0, 1009.0, 1020.0, 1040.0):
        note_size(notes, log, now)
    assert notes.stat().st_size == 16
    log.write_bytes(b"xx")
    note_size(notes, log, 1060.0)
    note_size(notes, log, 1000.0)  # the clock went back
    assert notes.stat().st_size == 32


def test_a_torn_note_is_left_out_and_nothing_is_added_to_it(log: Path, notes: Path) -> None:
    log.write_bytes(b"x")
    note_size(notes, log, 1000.0)
    with notes.open("ab") as file:
        file.write(b"torn")
    assert size_at(notes, 2000.0) == 1
    log.write_bytes(b"xxx")
    note_size(notes, log, 2000.0)
    assert notes.stat().st_size == 20


def test_notes_that_cannot_be_written_or_read_do_no_harm(log: Path, notes: Path) -> None:
    log.write_bytes(b"x")
    notes.mkdir()
    note_size(notes, log, 1000.0)
    assert size_at(notes, 2000.0) == 0
