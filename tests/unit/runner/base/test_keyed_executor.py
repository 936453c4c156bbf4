from functools import partial
from threading import Barrier, Event

from runner.base.keyed_executor import IN_A_ROW, KeyedExecutor
from tests.fakes.patience import patience


def test_work_of_one_key_is_done_in_order() -> None:
    order: list[int] = []
    work_queue, done = KeyedExecutor(4), Event()
    for number in range(50):
        work_queue.put("a", partial(order.append, number), "ann")
    work_queue.put("a", done.set, "ann")
    assert done.wait(patience())
    assert order == list(range(50))


def test_two_keys_work_concurrently() -> None:
    work_queue, meeting, met = KeyedExecutor(2), Barrier(2, timeout=patience()), [Event(), Event()]
    for name, event in zip("ab", met, strict=True):
        work_queue.put(name, partial(meet, meeting, event), "ann")
    assert all(event.wait(patience()) for event in met)


def test_a_key_without_work_is_not_busy() -> None:
    work_queue, begun, go, over = KeyedExecutor(1), Event(), Event(), Event()

    def work() -> None:
        begun.set()
        go.wait(patience())

    work_queue.put("a", work, "ann")
    assert begun.wait(patience())
    assert work_queue.busy("a")
    go.set()
    work_queue.put("a", over.set, "ann")
    assert over.wait(patience())
    work_queue.close()


def meet(meeting: Barrier, event: Event) -> None:
    meeting.wait()
    event.set()


def test_a_key_with_much_work_does_not_keep_a_thread_for_itself() -> None:
    work_queue, filled, over = KeyedExecutor(1), Event(), Event()
    done: list[str] = []
    work_queue.put("a", partial(wait, filled), "ann")
    for _ in range(3 * IN_A_ROW):
        work_queue.put("a", partial(done.append, "a"), "ann")
    work_queue.put("b", partial(done.append, "b"), "ann")
    work_queue.put("a", over.set, "ann")
    filled.set()
    assert over.wait(patience())
    assert done.index("b") < IN_A_ROW
    assert done.count("a") == 3 * IN_A_ROW
    work_queue.close()


def test_more_threads_join_in_where_one_waits() -> None:
    work_queue, go = KeyedExecutor(3), Event()
    begun = [Event() for _ in range(3)]
    for number, event in enumerate(begun):
        work_queue.put(f"job {number}", partial(hold, event, go), "ann")
    assert all(event.wait(patience()) for event in begun)
    go.set()
    work_queue.close()


def hold(begun: Event, go: Event) -> None:
    begun.set()
    assert go.wait(patience())


def test_whoever_waits_in_all_their_work_keeps_nobody_elses_waiting() -> None:
    work_queue, go, done = KeyedExecutor(2), Event(), Event()
    for number in range(10):
        work_queue.put(f"job {number}", partial(wait, go), "ann")
    work_queue.put("job 11", done.set, "bob")
    assert done.wait(patience())
    go.set()
    work_queue.close()


def test_no_work_begins_once_the_executor_is_closed() -> None:
    work_queue, begun, go, other = KeyedExecutor(1), Event(), Event(), Event()
    work_queue.put("a", partial(hold, begun, go), "ann")
    work_queue.put("a", other.set, "ann")
    work_queue.put("b", other.set, "ann")
    assert begun.wait(patience())
    work_queue.close()
    work_queue.put("c", other.set, "ann")
    go.set()
    assert not other.wait(0.05)


def test_work_that_raises_costs_no_thread() -> None:
    work_queue, over = KeyedExecutor(1), Event()

    def fail() -> None:
        raise ValueError("a mistake")

    work_queue.put("a", fail, "ann")
    work_queue.put("b", over.set, "ann")
    assert over.wait(patience())
    work_queue.close()


def wait(event: Event) -> None:
    assert event.wait(patience())
