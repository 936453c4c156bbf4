"""Pieces of logs that are cut while somebody reads them, and when their attempt has ended."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from runner.adapters.host import log_quota
from runner.control.observer import Observer
from runner.server.api import logs
from tests.unit.runner.server.api.test_jobs import Site

MIB = 1024**2  # the quota of these sites
PROGRAM = "workload: {kind: program, command: [./train]}\nretry: {max_attempts: 1}\n"
LINES = b"".join(b"line %07d of a program that has much to say\n" % i for i in range(100_000))
LAST_WORDS = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose attempts end before anybody has looked at their logs."""
    monkeypatch.setattr(Observer, "_tend", lambda _: None)
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def _says(site: Site, text: bytes) -> Path:
    site.submit(PROGRAM)
    site.until("running")
    log = site.attempt_dir() / "log.txt"
    log.write_bytes(text)
    return log


def _piece(site: Site, offset: int) -> httpx.Response:
    return site.ask("GET", f"/jobs/1/log?attempt=1&offset={offset}")


def _rest(site: Site, offset: int) -> tuple[list[tuple[int, bytes]], list[str]]:
    """Return what a reader gets from an offset on, each piece with its place, and the cuts it is told of."""
    pieces, cuts = [], []
    while (answer := _piece(site, offset)).headers["x-runner-attempt-ended"] == "0":
        if answer.content:
            pieces.append((offset, answer.content))
        cuts += [answer.headers["x-runner-cut"]] if "x-runner-cut" in answer.headers else []
        offset = int(answer.headers["x-runner-next-offset"])
    return pieces, cuts


def test_what_a_log_gained_before_its_attempt_ended_is_held_to_the_quota(site: Site) -> None:
    log = _says(site, LINES)
    site.end(1)
    site.until("finished")
    after = log.read_bytes()
    assert log.stat().st_blocks * 512 <= MIB
    assert len(after) == len(LINES)
    assert (after[: MIB // 4], after[-MIB // 2 :]) == (LINES[: MIB // 4], LINES[-MIB // 2 :])


def test_the_last_words_of_a_log_that_is_cut_at_the_end_are_looked_into(site: Site) -> None:
    _says(site, LINES + LAST_WORDS)
    site.end(1)
    site.until("finished")
    [decision] = site.service.store.decisions("1")
    assert json.loads(decision.body)["facts"]["oom.device"] is True


@pytest.mark.parametrize("read", [1, 3])
def test_who_follows_a_log_that_is_cut_at_the_end_goes_on_where_it_stopped(site: Site, read: int) -> None:
    """Before the cut, and from within what is cut."""
    _says(site, LINES)
    offset, began = 0, b""
    for _ in range(read):
        first = _piece(site, offset)
        offset, began = int(first.headers["x-runner-next-offset"]), began + first.content
    site.end(1)
    site.until("finished")
    [*pieces], [cut] = _rest(site, offset)
    assert began == LINES[:offset]
    assert cut.startswith(f"{offset}-")
    assert [text for _, text in pieces] == [LINES[at : at + len(text)] for at, text in pieces]
    assert sum(len(text) for _, text in pieces) >= MIB // 2
    assert b"\0" not in b"".join(text for _, text in pieces)


def test_a_piece_that_is_cut_while_it_is_read_is_read_or_told_as_cut_but_no_zeros(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _says(site, LINES)
    asked = log_quota.next_segment

    def cut_meanwhile(descriptor: int, offset: int) -> log_quota.Segment | None:
        found = asked(descriptor, offset)
        log_quota.enforce(log, MIB, MIB // 4, MIB // 2)
        return found

    monkeypatch.setattr(log_quota, "next_segment", cut_meanwhile)
    assert _piece(site, MIB).content == LINES[MIB : 2 * MIB]
    assert _piece(site, MIB).headers["x-runner-cut"].startswith(f"{MIB}-")


@pytest.mark.parametrize("offset", [10, 2**62, 2**63 - 1])
def test_beyond_the_end_of_a_log_there_is_nothing_however_far(site: Site, offset: int) -> None:
    _says(site, b"one\n")
    answer = _piece(site, offset)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["x-runner-next-offset"] == str(offset)


def test_a_log_of_many_ranges_costs_no_more_than_a_log_of_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range was walked over: 60,000 of them kept the daemon from answering anybody."""
    block, ranges = 4096, 500
    log = _says(site, b"")
    with log.open("r+b") as file:
        for number in range(ranges):
            os.pwrite(file.fileno(), b"x" * block, 2 * number * block)
    looked = 0
    seek = os.lseek

    def counted(descriptor: int, offset: int, whence: int) -> int:
        nonlocal looked
        looked += 1
        return seek(descriptor, offset, whence)

    monkeypatch.setattr(os, "lseek", counted)
    last = 2 * (ranges - 1) * block
    assert _piece(site, last).content == b"x" * block
    assert _piece(site, last - block).headers["x-runner-cut"] == f"{last - block}-{last}"
    assert looked <= 4


def test_the_more_requests_wait_for_a_log_the_less_often_each_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def slept(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", slept)

    async def three_hundred() -> logs.LogPolls:
        polls = logs.LogPolls()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(polls.pause() for _ in range(300))), 0.01)
        return polls

    assert asyncio.run(three_hundred()).waiting == 0
    assert (waits[0], waits[-1]) == (logs.POLL_S, 300 / logs.POLLS_PER_S)


def test_no_piece_of_a_log_ends_in_the_middle_of_a_character(site: Site) -> None:
    text = "ä€😀".encode() * (MIB // 8)
    log = _says(site, text[:-1])
    pieces, offset = [], 0
    while content := _piece(site, offset).content:
        pieces.append(content.decode())
        offset += len(content)
    assert "".join(pieces) == text[:-4].decode()
    log.write_bytes(text)
    assert _piece(site, offset).content == "😀".encode()


def test_a_character_that_is_never_completed_is_given_at_the_end(site: Site) -> None:
    _says(site, b"caf\xc3")
    assert _piece(site, 0).content == b"caf"
    site.end(1)
    site.until("finished")
    assert _piece(site, 3).content == b"\xc3"
