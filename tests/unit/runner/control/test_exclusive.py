"""A question is answered where it was asked while the loop waits, and on the loop's thread while it works."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread

import pytest

from runner.base.errors import Unavailable
from runner.control import exclusive as module
from runner.control.exclusive import ExclusiveSection
from runner.control.inbox import Inbox
from runner.control.messages import Call
from tests.fakes.patience import patience


@pytest.fixture
def box() -> Inbox:
    return Inbox()


@pytest.fixture
def exclusive(box: Inbox) -> ExclusiveSection:
    return ExclusiveSection(box)


def work_of_the_loop(box: Inbox) -> None:
    """Do what has been asked for, as the loop does."""
    for message in box.receive(patience()):
        assert isinstance(message, Call)
        message.work()


def test_while_the_loop_waits_a_call_runs_on_the_callers_thread_and_wakes_the_loop(
    box: Inbox, exclusive: ExclusiveSection
) -> None:
    assert exclusive.run(current_thread) is current_thread()
    assert not box.empty()
    work_of_the_loop(box)  # it finds nothing to do
    assert box.empty()


def test_while_the_loop_works_a_call_runs_on_the_loops_thread(
    box: Inbox, exclusive: ExclusiveSection
) -> None:
    with ThreadPoolExecutor(1) as others, exclusive.hold():
        answer = others.submit(lambda: exclusive.run(current_thread))
        work_of_the_loop(box)
        assert answer.result(patience()) is current_thread()
    assert box.empty()


def test_a_question_that_fails_gives_the_turn_back_and_says_so(exclusive: ExclusiveSection) -> None:
    def fail() -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        exclusive.run(fail)
    assert exclusive.run(current_thread) is current_thread()


def test_a_question_that_comes_while_another_is_answered_is_left_to_the_loop(
    box: Inbox, exclusive: ExclusiveSection
) -> None:
    begun, go_on, said = Event(), Event(), []

    def slowly() -> None:
        begun.set()
        assert go_on.wait(patience())
        said.append("first")

    with ThreadPoolExecutor(2) as others:
        others.submit(lambda: exclusive.run(slowly))
        assert begun.wait(patience())
        second = others.submit(lambda: exclusive.run(lambda: said.append("second")))
        (message,) = box.receive(patience())
        go_on.set()
        with exclusive.hold():
            assert isinstance(message, Call)
            message.work()
        second.result(patience())
    assert said == ["first", "second"]


def test_a_look_begins_nothing_and_does_not_wake_the_loop(box: Inbox, exclusive: ExclusiveSection) -> None:
    assert exclusive.read(current_thread) is current_thread()
    assert box.empty()


def test_a_look_gives_up_where_the_loop_hangs(
    exclusive: ExclusiveSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    with ThreadPoolExecutor(1) as others, exclusive.hold():
        looks = others.submit(lambda: exclusive.read(lambda: None))
        with pytest.raises(Unavailable, match="try again"):
            looks.result(patience())


def test_a_call_that_the_loop_does_not_answer_is_refused_and_never_done(
    box: Inbox, exclusive: ExclusiveSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    done: list[str] = []
    with ThreadPoolExecutor(1) as others, exclusive.hold():
        call = others.submit(lambda: exclusive.run(lambda: done.append("too late")))
        with pytest.raises(Unavailable, match="try again"):
            call.result(patience())
        work_of_the_loop(box)
    assert done == []
