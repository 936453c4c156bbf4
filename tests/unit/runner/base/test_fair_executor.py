"""Turns between users, limits per user, and an end that waits for nobody."""

from functools import partial
from threading import Barrier, Event, current_thread

from runner.base.fair_executor import FairExecutor
from tests.fakes.patience import patience


def _wait(what: Event | Barrier) -> None:
    what.wait(patience())


def _fail() -> None:
    raise KeyError


def test_work_of_one_user_never_takes_the_threads_of_another() -> None:
    pool, stuck, done = FairExecutor("test", threads=3, threads_per_user=2), Event(), Event()
    for _ in range(10):
        pool.put("ann", partial(_wait, stuck))
    pool.put("bob", done.set)
    assert done.wait(patience())
    stuck.set()


def test_users_take_turns() -> None:
    pool, order, end = FairExecutor("test", threads=1), list[str](), Event()
    begin = Barrier(2)
    pool.put("first", partial(_wait, begin))
    for _ in range(3):
        pool.put("ann", lambda: order.append("ann"))
    for _ in range(2):
        pool.put("bob", lambda: order.append("bob"))
    pool.put("cid", lambda: order.append("cid"))
    pool.put("end", lambda: None)
    pool.put("ann", end.set)
    begin.wait(patience())
    assert end.wait(patience())
    assert order == ["ann", "bob", "cid", "ann", "bob", "ann"]


def test_work_that_raises_takes_no_thread_with_it() -> None:
    pool, done = FairExecutor("test", threads=1), Event()
    pool.put("ann", _fail)
    pool.put("ann", done.set)
    assert done.wait(patience())


def test_no_work_begins_after_the_end_and_no_thread_keeps_the_process() -> None:
    pool, stuck, threads, begun = FairExecutor("test", threads=1), Event(), list[bool](), Event()

    def work() -> None:
        threads.append(current_thread().daemon)
        begun.set()
        stuck.wait(patience())

    pool.put("ann", work)
    pool.put("ann", lambda: threads.append(False))
    assert begun.wait(patience())
    pool.close()
    pool.put("bob", lambda: threads.append(False))
    stuck.set()
    assert threads == [True]
