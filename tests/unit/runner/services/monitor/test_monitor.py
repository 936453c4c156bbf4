"""Samples of the meter over a real daemon and store; time and devices are the test's."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import Phase
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.base.errors import Unavailable
from runner.core.policy.facts import DecisionPoint
from runner.core.ports.store import DecisionRow
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Alarm, Settings
from runner.services.monitor.alarms import ALARM
from runner.services.monitor.counts import OTHER_RULE
from runner.services.monitor.monitor import UtilizationMonitor
from tests.fakes.daemon.clock import FakeClock
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import GPU_JOB, Place


class Looked(Place):
    """A site whose meter is looked through by the test alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.time = FakeClock()
        self.service = replace(
            self.service,
            clock=self.time,
            live=LiveSettings(Settings(alarm=Alarm(window_s=60, profiles={"quiet": 5}))),
        )
        self.monitor = UtilizationMonitor(self.service)
        self.monitor.sample()

    def looks(self, times: int = 14, **said: Any) -> None:
        """Look every five seconds; a minute and more by default."""
        for _ in range(times):
            self.time.forward(5)
            if said:
                self.reports(**said)
            self.monitor.sample()

    def alarms(self) -> list[str]:
        return list(self.service.store.noted("1", ALARM))

    def busy(self) -> tuple[float, float] | None:
        """Return the record of the first attempt."""
        found = self.store.rows("utilisation_of", job_id=1, attempt=1)
        return (found[0]["device_s"], found[0]["busy_s"]) if found else None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Looked]:
    place = Looked(tmp_path)
    yield place
    place.service.daemon.stop()


def test_an_idle_device_becomes_a_line_on_its_job_once_that_says_why(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(12, data_wait=0.83)
    assert place.alarms() == []  # not for a minute yet
    place.looks(20, data_wait=0.83)
    [said] = place.alarms()
    assert said == (
        "attempt 1: input-bound: 83% of step time waits for data; loader workers 1 "
        "(devices busy 40% of the last 1m, alarm below 70%)"
    )
    assert "1" in place.monitor.alarms
    assert [event["kind"] for event in place.ask("GET", "/events?job=1").json()["events"]].count(ALARM) == 1


def test_an_alarm_of_another_kind_is_another_line(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(data_wait=0.83)
    place.looks(data_wait=0.01)
    assert [("input" in text, "host-bound" in text) for text in place.alarms()] == [
        (True, False),
        (False, True),
    ]


def test_a_daemon_that_comes_back_does_not_say_it_again(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(data_wait=0.83)
    place.monitor = UtilizationMonitor(place.service)
    place.looks(20, data_wait=0.83)
    assert len(place.alarms()) == 1


def test_an_alarm_is_over_when_the_devices_are_busy_or_the_job_has_ended(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(data_wait=0.83)
    place.lately.known["device.util"] = 99.0
    place.looks(14, data_wait=0.01)
    assert place.monitor.alarms == {}
    place.lately.known["device.util"] = 1.0
    place.looks(14, data_wait=0.83)
    assert "1" in place.monitor.alarms
    place.complete()
    place.until("finished")
    place.looks(1)
    assert place.monitor.alarms == {}


def test_a_program_that_never_reports_is_told_of_once_its_device_idles(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.lately.known["device.util"] = 0.0
    place.looks()
    [said] = place.alarms()
    assert said.startswith("attempt 1: it says nothing of itself, and its devices idle (devices busy 0%")


def test_a_job_without_devices_is_judged_by_its_waiting(place: Looked) -> None:
    place.submit()
    place.until("running")
    place.looks(data_wait=0.5)
    [said] = place.alarms()
    assert "steps busy 50%" in said


def test_a_profile_may_have_a_limit_of_its_own(place: Looked) -> None:
    settings = place.service.settings.model_copy(
        update={"alarm": Alarm(window_s=60, below_percent=70, profiles={"cpu": 10, "baseline": 10})}
    )
    place.service = replace(place.service, live=LiveSettings(settings))
    place.monitor = UtilizationMonitor(place.service)
    place.submit(JOB + "profile: cpu\n")
    place.until("running")
    place.looks(data_wait=0.5)
    assert place.alarms() == []


def test_a_silent_job_is_another_matter(place: Looked) -> None:
    settings = Settings(alarm=Alarm(window_s=120))
    place.service = replace(place.service, live=LiveSettings(settings))
    place.monitor = UtilizationMonitor(place.service)
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(1, data_wait=0.83)
    place.looks(60)
    assert place.alarms() == []


def test_of_a_program_of_its_owners_own_the_setup_is_not_known(place: Looked) -> None:
    place.submit("workload: {kind: program, command: [sleep, '100']}\n")
    place.until("running")
    place.looks(data_wait=0.5)
    [said] = place.alarms()
    assert "loader workers" not in said


def test_no_limit_at_all_never_alarms(place: Looked) -> None:
    settings = Settings(alarm=Alarm(window_s=60, below_percent=0))
    place.service = replace(place.service, live=LiveSettings(settings))
    place.monitor = UtilizationMonitor(place.service)
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(data_wait=1.0)
    assert place.alarms() == []


def test_a_phase_that_takes_its_time_is_no_reason(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(40, phase=Phase.COMPILE, data_wait=0.9)
    assert place.alarms() == []


def test_how_busy_devices_were_is_added_up_and_written_now_and_then(place: Looked) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(20)
    device_s, busy_s = place.busy() or (0.0, 0.0)
    assert device_s >= 55
    assert busy_s == pytest.approx(0.4 * device_s)
    place.monitor.stop()
    assert (place.busy() or (0, 0))[0] == pytest.approx(95)  # the first look only begins


def test_what_cannot_be_written_is_kept_for_the_next_time(
    place: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    with monkeypatch.context() as full:

        def no_room(*_: object) -> None:
            raise Unavailable("the disk is full")

        full.setattr(SqliteAccounting, "add", no_room)
        place.looks(20)
    assert place.busy() is None
    place.looks(13)
    assert (place.busy() or (0, 0))[0] == pytest.approx(115)


def test_devices_of_which_nothing_is_known_are_not_counted(place: Looked) -> None:
    place.lately.known.clear()
    place.submit(GPU_JOB)
    place.until("running")
    place.looks(30, data_wait=0.9)
    place.monitor.stop()
    assert place.busy() is None
    assert place.alarms() == []


def test_ends_and_decisions_are_counted_from_the_start_of_the_daemon(place: Looked) -> None:
    place.submit(JOB)
    place.until("running")
    place.complete()
    place.until("finished")
    place.looks(1)
    assert dict(place.monitor.counts.ended) == {"completed": 1}
    assert dict(place.monitor.counts.decisions) == {("exit", "done"): 1}
    assert not UtilizationMonitor(place.service).counts.ended
    later = UtilizationMonitor(place.service)
    later.sample()
    assert not later.counts.ended  # what was before is not its own


def test_rules_of_peoples_own_are_one_figure(place: Looked) -> None:
    place.submit(JOB)
    for rule in ("mine-1", "mine-2", "done", ""):
        body = f'{{"verdict": {{"rule": "{rule}"}}, "policy": {{"name": "x"}}}}'
        row = DecisionRow("1", 1, DecisionPoint.EXIT, place.service.clock.now(), body)
        place.service.daemon.run_exclusively(partial(place.service.store.decided, row))
    place.looks(1)
    assert dict(place.monitor.counts.decisions) == {
        ("exit", OTHER_RULE): 2, ("exit", "done"): 1, ("exit", "none"): 1,
    }  # fmt: skip


def test_the_answers_of_the_loop_are_timed(place: Looked) -> None:
    place.looks(3)
    assert len(place.monitor.lags) >= 3
    assert all(lag >= 0 for lag in place.monitor.lags)


def test_a_loop_that_does_not_answer_is_a_figure_and_no_mistake(
    place: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_turns: object, _work: object) -> Future[None]:
        place.time.forward(30)
        late: Future[None] = Future()
        late.set_exception(TimeoutError())
        return late

    monkeypatch.setattr(type(place.service.daemon.exclusive), "submit", stuck)
    place.looks(1)
    assert place.monitor.lags[-1] == 30
