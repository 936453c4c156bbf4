"""Schedules under kills, clocks that jump and lanes that dawdle, in any order."""

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.services.context import Caller
from tests.fakes.daemon.schedules import Clockwork

STEPS = st.one_of(
    st.tuples(st.just("forward"), st.integers(1, 5 * 3600)),
    st.tuples(st.just("jump"), st.integers(-5 * 3600, 5 * 3600)),
    st.tuples(st.sampled_from(["kill", "tick", "step", "end"]), st.just(0)),
)


def do(site: Clockwork, what: str, seconds: int) -> None:
    match what:
        case "forward":
            site.clock.forward(seconds)
        case "jump":
            site.clock.jump(seconds)
        case "kill":
            site.boot()
        case "tick":
            site.tick()
        case "step":
            site.work_queue.step()
        case _:
            for job_id in site.books.unfinished(1):
                site.end(job_id)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
@given(steps=st.lists(STEPS, max_size=25), missed=st.sampled_from(["skip", "run_once"]))
@settings(max_examples=40)
def test_no_time_comes_twice_and_the_next_one_always_comes(
    overlap: str, missed: str, steps: list[tuple[str, int]]
) -> None:
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        site = Clockwork(Path(directory), Caller(os.getuid(), os.getgid()))
        site.at("2030-01-01 12:30")
        site.make(f"cron: 0 * * * *, overlap: {overlap}, missed: {missed}")
        for what, seconds in steps:
            before, due = len(site.jobs()), _due(site)
            do(site, what, seconds)
            assert len(site.jobs()) <= before + due
        made = Counter(row.name for row in site.jobs())
        assert set(made.values()) <= {1}
        _settle(site)
        assert _due(site) == 0
        linked = [row.job_id for row in site.books.firings(1, 1000) if row.state == "submitted"]
        assert sorted(map(str, linked), key=int) == [row.job.id for row in site.jobs()]
        if overlap == "replace":
            assert len(site.books.unfinished(1)) <= 1
        _one_more(site)


def _due(site: Clockwork) -> int:
    return sum(row.state == "due" for row in site.books.firings(1, 1000))


def _settle(site: Clockwork) -> None:
    """Let everything that has begun be done."""
    site.tick()
    site.work()
    site.clock.forward(31)
    site.tick()
    site.work()


def _one_more(site: Clockwork) -> None:
    """Every schedule goes on, whatever has happened: a time that has not been yet makes a job."""
    do(site, "end", 0)
    site.clock.forward(30 * 3600)  # past everything that a jump has reached
    _settle(site)
    do(site, "end", 0)
    before = len(site.jobs())
    for _ in range(60):
        site.clock.forward(60)
        site.tick()
        site.work()
    assert len(site.jobs()) == before + 1
