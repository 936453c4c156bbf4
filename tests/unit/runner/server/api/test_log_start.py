from pathlib import Path

import pytest

from runner.adapters.host.log_times import note_size
from runner.server.api import log_start
from runner.server.api.log_start import line_start, tail_start
from tests.unit.runner.server.api.test_jobs import Site
from tests.unit.runner.server.api.test_logs import PROGRAM, site  # noqa: F401  a fixture


@pytest.mark.parametrize(
    ("text", "lines", "found"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"\n", 1, b"\n"),
        (b"a\n", 0, b""),
        (b"", 3, b""),
    ],
)
def test_the_last_lines_begin_after_a_line_end(tmp_path: Path, text: bytes, lines: int, found: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(text)
    assert text[tail_start(path, lines) :] == found


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_the_last_lines_are_whole_however_long_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(log_start, "LOOK_BYTES", block)
    path = tmp_path / "log"
    lines = [b"%d" % number * number + b"\n" for number in range(1, 10)]
    for text in (b"".join(lines), b"".join(lines).rstrip()):
        path.write_bytes(text)
        for count in range(1, 12):
            assert text[tail_start(path, count) :] == b"".join(text.splitlines(keepends=True)[-count:])


def test_only_the_end_of_a_log_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_start, "LONGEST_TAIL_BYTES", 10)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100)
    assert (tail_start(path, 1), line_start(path, 5)) == (90, 5)
    assert (tail_start(tmp_path / "none", 1), line_start(tmp_path / "none", 5)) == (0, 5)


@pytest.mark.parametrize(("offset", "start"), [(0, 0), (1, 3), (3, 3), (4, 6), (7, 9), (10, 13)])
def test_a_reader_begins_with_a_whole_line(tmp_path: Path, offset: int, start: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"ab\ncd\nef\n 5%\r10%")
    assert line_start(path, offset) == start


def test_the_tail_and_the_time_are_those_of_the_newest_attempt(site: Site) -> None:  # noqa: F811
    site.submit(PROGRAM)
    assert site.ask("GET", "/jobs/1/log?tail=3").status_code == 200  # there is no attempt yet
    site.until("running")
    log = site.attempt_dir() / "log.txt"
    log.write_bytes(b"one\ntwo\n")
    note_size(log.parents[1] / "1.log-times", log, 1000.0)
    log.write_bytes(b"one\ntwo\nthree\nfour\n")
    answer = site.ask("GET", "/jobs/1/log?tail=1")
    assert (answer.content, answer.headers["x-runner-next-offset"]) == (b"four\n", "19")
    assert site.ask("GET", "/jobs/1/log?since=1500").content == b"three\nfour\n"
    assert site.ask("GET", "/jobs/1/log?since=1500&tail=1").content == b"four\n"
    assert site.ask("GET", "/jobs/1/log?since=500").content == b"one\ntwo\nthree\nfour\n"
