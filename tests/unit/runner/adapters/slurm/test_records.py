"""Records of attempts, and what their batch scripts leave in a directory that belongs to somebody else."""

import os
from pathlib import Path
from stat import S_ISREG

import pytest

from runner.adapters.slurm.records import SlurmRecords, parse_claim, read_foreign
from runner.adapters.slurm.states import Claim
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner

KEY = Key("abc", "7", 2)


def request_in(place: Path) -> LaunchRequest:
    leaf = place / "run\n'x" / "attempts" / "2"
    leaf.mkdir(parents=True)
    limits = Limits(1.0, 2**30)
    run_dir = leaf.parents[1]
    return LaunchRequest(
        KEY, "tiny", Owner(1001, 1001, "ada"), "", ("true",), run_dir, leaf / "log.txt", limits
    )


def test_a_booking_is_made_once_and_found_by_the_next_daemon(tmp_path: Path) -> None:
    request, records = request_in(tmp_path), SlurmRecords(tmp_path / "books", "abc")
    records.create_directory()
    made = records.of(KEY).create(request, 5.0)
    assert records.of(KEY).create(request, 9.0) == made
    assert [booking for booking, _ in SlurmRecords(tmp_path / "books", "abc").all()] == [made]
    assert list(SlurmRecords(tmp_path / "books", "other").all()) == []
    assert (made.place.name, made.attempt_dir) == (".slurm-2", request.log.parent)


def test_what_was_asked_of_slurm_is_kept(tmp_path: Path) -> None:
    request, records = request_in(tmp_path), SlurmRecords(tmp_path / "books", "abc")
    record = records.of(KEY)
    booking = record.create(request, 5.0)
    assert (record.number, record.killed, record.evidence(booking).cancelled) == (None, False, None)
    record.set_number("12")
    record.set_killed()
    record.set_cancelled(15)
    seen = record.evidence(booking)
    assert (record.number, seen.killed, seen.cancelled) == ("12", True, 15)
    record.remove()
    record.remove()
    assert list(records.all()) == []


def test_a_record_that_was_partly_removed_is_no_booking(tmp_path: Path) -> None:
    request, records = request_in(tmp_path), SlurmRecords(tmp_path / "books", "abc")
    record = records.of(KEY)
    record.create(request, 5.0)
    (record.path / "booking.json").unlink()
    assert record.booking() is None
    (tmp_path / "books" / ".runner-abc-7-2").mkdir()
    records.create_directory()
    assert [each.name for each in (tmp_path / "books").iterdir()] == ["runner-abc-7-2"]


def test_the_files_of_an_attempt_are_evidence(tmp_path: Path) -> None:
    request, records = request_in(tmp_path), SlurmRecords(tmp_path / "books", "abc")
    booking = records.of(KEY).create(request, 5.0)
    leaf = booking.attempt_dir
    (leaf / ".slurm-claim").write_text("12 0 node3 4f2e-boot 1,3\n")
    (leaf / ".slurm-out").write_text("one\nsh: 1: pyton: not found\n\n")
    (leaf / ".slurm-exit").write_text("127\n")
    seen = records.of(KEY).evidence(booking)
    assert seen.claim == Claim("12", "node3", ("1", "3"))
    assert (seen.exit_code, seen.said) == (127, "sh: 1: pyton: not found")
    assert seen.exited_at is not None


@pytest.mark.parametrize("text", ["", "12", "x 0 node1 boot", "\0\0\0"])
def test_a_torn_claim_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "claim").write_text(text)
    assert parse_claim(read_foreign(tmp_path / "claim")) is None


def test_neither_links_nor_pipes_of_a_job_are_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert [read_foreign(tmp_path / name) for name in ("link", "pipe", "none", ".")] == [None] * 4


def test_a_file_of_another_user_than_its_directory_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report").write_text("1\n")
    owned = os.fstat

    def foreign(descriptor: int) -> os.stat_result:
        found = list(owned(descriptor))
        found[4] += S_ISREG(int(found[0]))  # its uid
        return os.stat_result(found)

    assert read_foreign(tmp_path / "report") is not None
    monkeypatch.setattr(os, "fstat", foreign)
    assert read_foreign(tmp_path / "report") is None


@pytest.mark.parametrize("written_s", [4 * 10**11, -(4 * 10**11), 2**62])
def test_a_time_that_no_calendar_has_is_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_s: int
) -> None:
    """All attempts are looked at together."""
    (tmp_path / "report").write_text("1\n")
    own = os.fstat

    def touched(descriptor: int) -> os.stat_result:
        found = list(own(descriptor))
        found[9] = written_s  # as a file system may say of a change
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", touched)
    found = read_foreign(tmp_path / "report")
    assert found is not None
    assert found[1].year in {1970, 9999}


def test_a_user_sets_no_time_of_an_exit(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("0\n")
    os.utime(tmp_path / "exit", (0, 0))
    found = read_foreign(tmp_path / "exit")
    assert found is not None
    assert found[1].timestamp() >= tmp_path.stat().st_ctime


def test_of_a_large_file_only_its_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 10**6 + "\nlast\n")
    found = read_foreign(tmp_path / "large")
    assert found is not None
    assert len(found[0]) == 4096
