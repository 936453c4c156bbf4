import os
import threading
from pathlib import Path

import pytest

from runner.adapters.host import log_quota

KIB = 1024


def _used(path: Path) -> int:
    return path.stat().st_blocks * 512


def _segments(path: Path) -> tuple[log_quota.Segment, ...]:
    found: list[log_quota.Segment] = []
    with path.open("rb") as file:
        while segment := log_quota.next_segment(file.fileno(), found[-1][1] if found else 0):
            found.append(segment)
    return tuple(found)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join(b"line %07d of the log\n" % i for i in range(20_000)))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def test_the_middle_of_a_log_over_its_quota_is_cut(log: Path) -> None:
    before, size = log.read_bytes(), log.stat().st_size
    cut = log_quota.enforce(log, 200 * KIB, 50 * KIB, 100 * KIB)
    after = log.read_bytes()
    assert cut > 200 * KIB
    assert _used(log) <= 200 * KIB
    assert (len(after), after[: 50 * KIB], after[-100 * KIB :]) == (
        size,
        before[: 50 * KIB],
        before[-100 * KIB :],
    )


def test_readers_are_told_what_was_cut(log: Path) -> None:
    whole = log.stat().st_size
    assert _segments(log) == ((0, whole),)
    log_quota.enforce(log, 200 * KIB, 50 * KIB, 100 * KIB)
    (start, cut), (resumed, end) = _segments(log)
    assert (start, end) == (0, whole)
    assert 50 * KIB <= cut < resumed <= whole - 100 * KIB
    assert log.read_bytes()[cut:resumed].strip(b"\0") == b""


def test_a_log_within_its_quota_is_left_alone(log: Path) -> None:
    assert log_quota.enforce(log, 10_000 * KIB, 10 * KIB, 10 * KIB) == 0
    assert _segments(log) == ((0, log.stat().st_size),)


def test_cutting_twice_cuts_only_what_has_grown(log: Path) -> None:
    log_quota.enforce(log, 200 * KIB, 50 * KIB, 100 * KIB)
    assert log_quota.enforce(log, 200 * KIB, 50 * KIB, 100 * KIB) == 0


def test_a_program_that_appends_meanwhile_loses_nothing_at_either_end(log: Path) -> None:
    lines = [b"appended %06d %s\n" % (i, b"x" * 100) for i in range(20_000)]

    def append() -> None:
        with log.open("ab", buffering=0) as file:
            for line in lines:
                file.write(line)

    before = log.read_bytes()
    writer = threading.Thread(target=append)
    writer.start()
    cuts = 0
    while writer.is_alive():
        cuts += log_quota.enforce(log, 300 * KIB, 50 * KIB, 100 * KIB) > 0
    writer.join()
    log_quota.enforce(log, 300 * KIB, 50 * KIB, 100 * KIB)
    after = log.read_bytes()
    whole = before + b"".join(lines)
    assert cuts > 0
    assert _used(log) <= 300 * KIB
    assert len(after) == len(whole)
    assert all(after[start:end] == whole[start:end] for start, end in _segments(log))
    assert after[-100 * KIB :] == whole[-100 * KIB :]


def test_a_link_in_the_place_of_the_log_is_not_followed(log: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(log)
    assert log_quota.enforce(link, KIB, 0, 0) == 0
    assert len(_segments(log)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second owner")
def test_a_second_name_of_somebody_elses_file_is_not_cut(log: Path, tmp_path: Path) -> None:
    attempt = tmp_path / "1"
    attempt.mkdir()
    os.chown(attempt, 12345, 12345)
    (attempt / "log.txt").hardlink_to(log)
    assert log_quota.enforce(attempt / "log.txt", KIB, 0, 0) == 0


def test_a_second_name_does_not_save_a_log_from_its_quota(log: Path, tmp_path: Path) -> None:
    (tmp_path / "name").hardlink_to(log)
    assert log_quota.enforce(log, 200 * KIB, 50 * KIB, 100 * KIB) > 0


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda _: None])
def test_what_is_not_a_regular_file_is_not_touched(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "log.txt")
    assert log_quota.enforce(tmp_path / "log.txt", 0, 0, 0) == 0


def test_a_file_system_without_holes_is_reported_once(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_quota._warn_once.cache_clear()
    # A length of no use stands in for a file system of no use: the kernel says EINVAL to it.
    real = log_quota._fallocate()
    monkeypatch.setattr(log_quota, "_fallocate", lambda: lambda fd, mode, start, _: real(fd, mode, start, 0))
    for _ in range(3):
        assert log_quota.enforce(log, KIB, 0, 0) == 0
    assert capsys.readouterr().out.count("log_quota.not_enforced") == 1
