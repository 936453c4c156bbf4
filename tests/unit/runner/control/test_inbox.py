"""The loop is woken for what cannot wait; news that come while lanes work are taken together."""

from datetime import UTC, datetime
from threading import Thread

import pytest

from runner.control import inbox
from runner.control.inbox import Inbox
from runner.control.messages import Call, EventReceived, Message, Observed
from runner.control.transitions import batches
from runner.core.job.events import ImageReady
from tests.fakes.patience import patience

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LONG_S = 2 * patience()


def news(job_id: str) -> EventReceived:
    return EventReceived(job_id, ImageReady(NOW, "img"))


def test_all_that_has_arrived_is_taken() -> None:
    box = Inbox()
    assert box.receive(0) == []
    for job_id in "123":
        box.put(news(job_id))
    assert not box.empty()
    assert box.receive(0) == [news("1"), news("2"), news("3")]
    assert box.empty()
    assert box.receive(0) == []


def test_of_several_looks_the_newest_counts_and_news_come_before_it() -> None:
    box = Inbox()
    for message in (news("1"), Observed(1.0, ()), news("2"), Observed(2.0, ())):
        box.put(message)
    found = box.receive(0)
    assert list(batches(found)) == [[news("1"), news("2")], [Observed(2.0, ())]]


def nothing() -> None:
    """Work of a lane that has nothing to tell."""


class Listener(Thread):
    """Waits for what arrives, on a thread of its own, and gathers until something ends that."""

    def __init__(self, box: Inbox) -> None:
        super().__init__(daemon=True)
        self.box = box
        self.found: list[list[Message]] = []
        self.start()
        while not box._gathering:
            assert self.is_alive()

    def run(self) -> None:
        self.found = [self.box.receive(LONG_S)]

    def heard(self) -> list[Message]:
        self.join(LONG_S / 2)
        assert not self.is_alive()
        return self.found[0]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Inbox:
    monkeypatch.setattr(inbox, "GATHER_S", LONG_S)
    return Inbox()


def test_news_that_come_while_lanes_work_are_taken_together(box: Inbox) -> None:
    first, second = box.track(nothing), box.track(nothing)
    box.put(news("1"))
    listener = Listener(box)
    first()
    box.put(news("2"))
    box.put(Observed(1.0, ()))
    listener.join(0.05)
    assert listener.is_alive()
    second()
    assert listener.heard() == [news("1"), news("2"), Observed(1.0, ())]


def test_what_somebody_asks_for_waits_for_no_lane(box: Inbox) -> None:
    box.track(nothing)
    box.put(news("1"))
    listener, asked = Listener(box), Call(nothing)
    box.put(asked)
    assert listener.heard() == [news("1"), asked]
    box.put(asked)
    assert box.receive(LONG_S) == [asked]


def test_a_lane_that_fails_is_not_waited_for(box: Inbox) -> None:
    def fail() -> None:
        raise ValueError("a mistake")

    failing = box.track(fail)
    box.put(news("1"))
    listener = Listener(box)
    with pytest.raises(ValueError, match="a mistake"):
        failing()
    assert listener.heard() == [news("1")]


def test_nobody_who_has_something_to_do_soon_gathers_for_longer(box: Inbox) -> None:
    box.track(nothing)
    box.put(news("1"))
    assert box.receive(0.01) == [news("1")]  # otherwise it gathers for longer than a test may take


def test_a_look_waits_until_the_lanes_are_done(box: Inbox) -> None:
    box.wait_for_work()  # there is nothing to wait for
    first, second = box.track(nothing), box.track(nothing)
    looking = Thread(target=box.wait_for_work, daemon=True)
    looking.start()
    first()
    looking.join(0.05)
    assert looking.is_alive()
    second()
    looking.join(LONG_S / 2)
    assert not looking.is_alive()


def test_a_look_waits_no_longer_than_news_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "GATHER_S", 0.01)
    box = Inbox()
    box.track(nothing)
    box.wait_for_work()
    assert not box._idle.is_set()


def test_a_caller_is_answered_before_the_loop_follows_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "YIELD_S", LONG_S)
    box, asked = Inbox(), Call(nothing)
    box.yield_once()
    box.put(asked)
    found: list[list[Message]] = []
    looking = Thread(target=lambda: found.append(box.receive(LONG_S)), daemon=True)
    looking.start()
    looking.join(0.05)
    assert looking.is_alive()
    box.put(news("1"))
    box._never.set()  # the moment is over
    looking.join(LONG_S / 2)
    assert found == [[asked, news("1")]]
