"""Records of processes, in every state that a crash can leave them."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.adapters.host.clock import boot_id
from runner.adapters.process.records import ProcessIdentity, ProcessRecord
from runner.core.ports.executor import Alive, Created, Gone, Key

KEY = Key("i1", "j1", 1)
STAT = f"/proc/{os.getpid()}/stat"


@pytest.fixture
def record(tmp_path: Path) -> ProcessRecord:
    record = ProcessRecord(tmp_path / "runner-i1-j1-1")
    record.create(KEY)
    return record


def _write(record: ProcessRecord, name: str, text: str) -> None:
    (record.path / name).write_text(text)


def _me() -> str:
    return f"{boot_id()}\n{Path(STAT).read_text()}"


def _dead() -> str:
    """Return a process with my number and another's birth."""
    head, _, tail = _me().rpartition(")")
    fields = tail.split()
    fields[19] = "1"
    return f"{head}) {' '.join(fields)}\n"


def test_opened_books_say_whose_they_are_and_that_nothing_started(record: ProcessRecord) -> None:
    assert (record.key(), record.observation(KEY)) == (KEY, Created(KEY))


def test_books_that_are_being_opened_are_nobodys(tmp_path: Path) -> None:
    assert ProcessRecord(tmp_path).key() is None


def test_a_shim_that_lives_means_alive(record: ProcessRecord) -> None:
    _write(record, "shim", _me())
    _write(record, "child", _dead())
    assert record.observation(KEY) == Alive(KEY, os.getpid())


def test_a_program_that_outlives_its_shim_is_alive(record: ProcessRecord) -> None:
    _write(record, "shim", _dead())
    _write(record, "child", _me())
    assert isinstance(record.observation(KEY), Alive)


def test_an_exit_status_is_an_end_whoever_lives(record: ProcessRecord) -> None:
    _write(record, "shim", _me())
    _write(record, "exit", "75\n")
    seen = record.observation(KEY)
    assert isinstance(seen, Gone)
    assert (seen.exit_code, seen.error, seen.at is not None) == (75, "", True)


def test_a_shim_that_died_leaves_an_unknown_exit_code(record: ProcessRecord) -> None:
    _write(record, "shim", _dead())
    seen = record.observation(KEY)
    assert (isinstance(seen, Gone) and seen.exit_code) is None


def test_a_process_number_of_an_earlier_boot_is_nobody(record: ProcessRecord) -> None:
    _write(record, "shim", _me().replace(boot_id(), "earlier"))
    assert isinstance(record.observation(KEY), Gone)


@pytest.mark.parametrize("name", ["exit", "shim"])
def test_a_file_that_a_power_cut_emptied_is_an_unknown_end(record: ProcessRecord, name: str) -> None:
    _write(record, "shim", _dead())
    _write(record, name, "")
    _write(record, "key.json", (record.path / "key.json").read_text().replace(boot_id(), "earlier"))
    seen = record.observation(KEY)
    assert (isinstance(seen, Gone) and seen.exit_code) is None


def test_a_claim_that_is_being_written_is_not_yet_an_end(record: ProcessRecord) -> None:
    _write(record, "shim", "")
    assert record.observation(KEY) == Created(KEY)


def test_the_shells_last_words_explain_a_program_that_never_began(record: ProcessRecord) -> None:
    _write(record, "exit", "127\n")
    _write(record, "stderr", "one\ntwo: not   found\n\n")
    seen = record.observation(KEY)
    assert isinstance(seen, Gone)
    assert seen.error == "two: not found"


def test_a_program_called_like_a_state_is_read_rightly(record: ProcessRecord) -> None:
    _write(record, "shim", f"{boot_id()}\n4711 (Z) Z) S {' '.join(str(n) for n in range(4, 30))}\n")
    shim = record.shim
    assert shim == ProcessIdentity(boot_id(), 4711, 22)


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = ProcessIdentity(boot_id(), os.getpid(), int(Path(STAT).read_text().rpartition(")")[2].split()[19]))
    assert me.alive
    assert not replace(me, start=me.start - 1).alive
    assert not replace(me, boot="earlier").alive


def test_an_end_never_seems_to_be_before_a_time_read_before_it(record: ProcessRecord) -> None:
    """The time of a file is that of the last timer tick: who ended when asked looked done before."""
    for _ in range(100):
        asked = datetime.now(UTC)
        # As a shell writes it: a file that was looked at, as open() does, has finer times in newer kernels.
        file = os.open(record.path / "exit", os.O_WRONLY | os.O_CREAT)
        os.write(file, b"0\n")
        os.close(file)
        ended = record.observation(KEY)
        assert isinstance(ended, Gone)
        assert ended.at is not None
        assert ended.at >= asked
        (record.path / "exit").unlink()
