from functools import partial
from threading import Barrier, Event

from runner.lanes import IN_A_ROW, Lanes


def test_one_lane_keeps_its_order_while_others_go_on() -> None:
    order: list[int] = []
    lanes, done = Lanes(4), Event()
    for number in range(50):
        lanes.put("a", partial(order.append, number))
    lanes.put("a", done.set)
    assert done.wait(10)
    assert order == list(range(50))


def test_two_lanes_work_side_by_side() -> None:
    lanes, meeting, met = Lanes(2), Barrier(2, timeout=10), [Event(), Event()]
    for name, event in zip("ab", met, strict=True):
        lanes.put(name, partial(meet, meeting, event))
    assert all(event.wait(10) for event in met)


def test_a_lane_that_has_nothing_to_do_is_not_busy() -> None:
    lanes, begun, go, over = Lanes(1), Event(), Event(), Event()

    def work() -> None:
        begun.set()
        go.wait(10)

    lanes.put("a", work)
    assert begun.wait(10)
    assert lanes.busy("a")
    go.set()
    lanes.put("a", over.set)
    assert over.wait(10)
    lanes.close()


def meet(meeting: Barrier, event: Event) -> None:
    meeting.wait()
    event.set()


def test_a_lane_with_much_to_do_does_not_keep_a_thread_for_itself() -> None:
    lanes, filled, over = Lanes(1), Event(), Event()
    done: list[str] = []
    lanes.put("a", partial(wait, filled))
    for _ in range(3 * IN_A_ROW):
        lanes.put("a", partial(done.append, "a"))
    lanes.put("b", partial(done.append, "b"))
    lanes.put("a", over.set)
    filled.set()
    assert over.wait(10)
    assert done.index("b") < IN_A_ROW
    assert done.count("a") == 3 * IN_A_ROW
    lanes.close()


def wait(event: Event) -> None:
    assert event.wait(10)
