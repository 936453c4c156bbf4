from functools import partial
from threading import Barrier, Event, Lock

import pytest

from runner.base import keyed_executor as lanes_module
from runner.base.keyed_executor import IN_A_ROW, Lanes


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


def test_quick_pieces_are_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "SPILL_S", 60.0)
    lanes, alone, over, crowds = Lanes(3), Lock(), Event(), []

    def work() -> None:
        crowds.append(not alone.acquire(blocking=False))
        Event().wait(0.002)
        alone.release()

    with lanes.together():
        for number in range(20):
            lanes.put(f"job {number}", work)
        lanes.put("last", over.set)
    assert over.wait(10)
    assert crowds == [False] * 20
    lanes.close()


def test_what_is_put_while_a_thread_only_stands_by_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, go, first, over = Lanes(2), Event(), Event(), Event()
    lanes.put("a", partial(hold, first, go))
    assert first.wait(10)
    monkeypatch.setattr(lanes_module, "SPILL_S", 60.0)
    lanes.put("b", first.clear)  # a thread stands by for it
    go.set()
    while lanes.busy("a") or lanes.busy("b"):
        Event().wait(0.001)
    lanes.put("c", over.set)
    assert over.wait(10)
    lanes.close()


def test_a_thread_that_stands_by_leaves_when_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "SPILL_S", 60.0)
    lanes, go, begun, other = Lanes(2), Event(), Event(), Event()
    lanes.put("a", partial(hold, begun, go))
    assert begun.wait(10)
    lanes.put("b", other.set)
    lanes.close()
    go.set()
    assert not other.wait(0.05)


def test_others_join_in_where_a_thread_waits() -> None:
    lanes, go = Lanes(3), Event()
    begun = [Event() for _ in range(3)]
    for number, event in enumerate(begun):
        lanes.put(f"job {number}", partial(hold, event, go))
    assert all(event.wait(10) for event in begun)
    go.set()
    lanes.close()


def hold(begun: Event, go: Event) -> None:
    begun.set()
    assert go.wait(10)


def test_nothing_begins_before_the_end_of_what_belongs_together() -> None:
    lanes, done = Lanes(2), Event()
    with lanes.together():
        lanes.put("a", done.set)
        assert lanes.busy("a")
        assert not done.wait(0.05)
    assert done.wait(10)
    done.clear()
    with pytest.raises(ValueError, match="a mistake"):
        fail_after(lanes, done)
    assert done.wait(10)
    lanes.close()


def fail_after(lanes: Lanes, done: Event) -> None:
    with lanes.together():
        lanes.put("b", done.set)
        raise ValueError("a mistake")


def test_what_was_there_before_does_not_wait_for_what_belongs_together() -> None:
    lanes, begun, go, other = Lanes(1), Event(), Event(), Event()
    lanes.put("a", partial(hold, begun, go))
    lanes.put("b", other.set)
    assert begun.wait(10)
    with lanes.together():
        go.set()
        assert other.wait(10)
    lanes.close()


def test_nothing_new_begins_once_they_are_closed() -> None:
    lanes, begun, go, other = Lanes(2), Event(), Event(), Event()
    lanes.put("a", partial(hold, begun, go))
    assert begun.wait(10)
    with lanes.together():
        lanes.put("b", other.set)
        lanes.close()
    go.set()
    assert not other.wait(0.05)


def test_work_that_does_not_look_after_its_mistakes_costs_no_thread() -> None:
    lanes, over = Lanes(1), Event()

    def fail() -> None:
        raise ValueError("a mistake")

    lanes.put("a", fail)
    lanes.put("b", over.set)
    assert over.wait(10)
    lanes.close()


def wait(event: Event) -> None:
    assert event.wait(10)
