import ast
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest
from structlog.testing import capture_logs

import runner
from runner.base.threads import PeriodicThread, run_guarded, run_to_future
from tests.fakes.patience import patience

LONG_S = 600.0


def test_a_failed_round_is_logged_and_the_next_round_runs() -> None:
    rounds: SimpleQueue[int] = SimpleQueue()
    numbers = iter(range(10))

    def work() -> None:
        rounds.put(number := next(numbers))
        if number < 2:
            raise ValueError("a mistake")

    thread = PeriodicThread("tester", 0.0, work, retry_s=lambda _failures: 0.0)
    with capture_logs() as lines:
        thread.start()
        assert [rounds.get(timeout=patience()) for _ in range(3)] == [0, 1, 2]
        thread.stop()
        thread.join(patience())
    failed = [(line["event"], line["thread"], line["failures"], line["exc_info"]) for line in lines[:2]]
    assert failed == [("thread.failed", "tester", 1, True), ("thread.failed", "tester", 2, True)]


def test_a_success_ends_a_row_of_failures() -> None:
    rounds = iter([False, False, True, False, None])
    waits: list[int] = []

    def retry_s(failures: int) -> float:
        waits.append(failures)
        return 0.0

    def work() -> None:
        succeeds = next(rounds)
        if succeeds is None:
            thread.stop()
        elif not succeeds:
            raise ValueError("a mistake")

    thread = PeriodicThread("tester", 0.0, work, retry_s=retry_s)
    thread.run()
    assert waits == [1, 2, 1]


def test_a_period_that_cannot_be_found_out_is_a_failed_round() -> None:
    done, periods = Event(), iter([LONG_S])

    def period_s() -> float:
        if next(periods, None) is None:
            done.set()
            thread.stop()
        raise ValueError("a mistake")

    thread = PeriodicThread("tester", period_s, lambda: None, retry_s=lambda _failures: 0.0)
    with capture_logs() as lines:
        thread.run()
    assert done.is_set()
    assert [line["event"] for line in lines] == ["thread.failed", "thread.failed"]


@pytest.fixture(params=["wait", "retry"])
def resting(request: pytest.FixtureRequest) -> Iterator[PeriodicThread]:
    """Return a thread in a wait of ten minutes: between two rounds, or after a failed one."""
    begun = Event()

    def work() -> None:
        begun.set()
        if request.param == "retry":
            raise ValueError("a mistake")

    thread = PeriodicThread("tester", LONG_S, work, begin_at_once=True, retry_s=lambda _failures: LONG_S)
    thread.start()
    assert begun.wait(patience())
    yield thread
    thread.stop()


def test_stop_ends_a_wait_at_once(resting: PeriodicThread) -> None:
    resting.stop()
    resting.join(patience())
    assert not resting._thread.is_alive()


def test_stop_ends_a_pause_inside_a_round() -> None:
    begun, stopped = Event(), Event()

    def work() -> None:
        begun.set()
        if thread.pause(LONG_S):
            stopped.set()

    thread = PeriodicThread("tester", LONG_S, work, begin_at_once=True)
    thread.start()
    assert begun.wait(patience())
    thread.stop()
    assert stopped.wait(patience())


def test_a_wake_up_ends_the_wait() -> None:
    rounds: SimpleQueue[None] = SimpleQueue()
    thread = PeriodicThread("tester", LONG_S, lambda: rounds.put(None))
    thread.start()
    assert rounds.empty()
    thread.wake()
    rounds.get(timeout=patience())
    thread.wake()
    rounds.get(timeout=patience())
    thread.stop()


def test_a_wake_up_during_a_round_makes_another_round_follow() -> None:
    rounds: list[int] = []

    def work() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            thread.wake()
        else:
            thread.stop()

    thread = PeriodicThread("tester", LONG_S, work, begin_at_once=True)
    thread.run()
    assert rounds == [1, 1]


def test_wake_ups_while_the_round_settles_are_served_by_that_round() -> None:
    rounds: list[int] = []
    waits = iter([0.0, 0.0])

    def period_s() -> float:
        wait_s = next(waits, None)
        if wait_s is None:
            assert not thread._woken.is_set()
            thread.stop()
            return 0.0
        return wait_s

    def settle() -> None:
        thread.wake()

    thread = PeriodicThread("tester", period_s, lambda: rounds.append(1), settle=settle)
    thread.run()
    assert rounds == [1, 1]


def test_a_thread_that_is_stopped_before_its_first_round_does_none() -> None:
    rounds: list[int] = []
    thread = PeriodicThread("tester", LONG_S, lambda: rounds.append(1), begin_at_once=True)
    thread.stop()
    thread.start()
    thread.join(patience())
    assert not rounds


def test_a_thread_that_was_never_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    thread = PeriodicThread("tester", LONG_S, lambda: None)
    monkeypatch.setattr(thread._thread, "join", waited.append)
    thread.join(patience())
    assert waited == []


def test_a_thread_does_not_wait_for_itself() -> None:
    joined = Event()

    def work() -> None:
        thread.stop()
        thread.join(LONG_S)
        joined.set()

    thread = PeriodicThread("tester", 0.0, work)
    thread.start()
    assert joined.wait(patience())


def test_what_guarded_work_raises_is_logged_and_handed_on() -> None:
    error = ValueError("a mistake")
    handed: list[BaseException] = []

    def work() -> int:
        raise error

    with capture_logs() as lines:
        assert run_guarded("probe", work, handed.append, job_id="7") is None
    assert handed == [error]
    assert [(line["event"], line["work"], line["job_id"], line["exc_info"]) for line in lines] == [
        ("work.failed", "probe", "7", True)
    ]


def test_guarded_work_that_succeeds_returns_its_result() -> None:
    with capture_logs() as lines:
        assert run_guarded("probe", lambda: 7, lambda _error: pytest.fail("it did not fail")) == 7
    assert lines == []


def test_a_future_gets_what_the_work_returns() -> None:
    future: Future[int] = Future()
    run_to_future(future, lambda: 7)
    assert future.result(0) == 7


@pytest.mark.parametrize("error", [ValueError("a mistake"), SystemExit(1)])
def test_a_future_gets_whatever_the_work_raises(error: BaseException) -> None:
    future: Future[int] = Future()

    def work() -> int:
        raise error

    run_to_future(future, work)
    assert future.exception(0) is error


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Return True if a handler is for any error."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in {"Exception", "BaseException"} for kind in kinds)


def test_a_broad_except_stands_nowhere_else() -> None:
    root = Path(runner.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    }
    assert found == {"base/threads.py", "adapters/notify.py"}  # the channel of a plug-in may raise anything
