"""Schedules over a real store and a clock that the test pushes: changes of clocks, downtime, kills."""

import os
from collections.abc import Callable
from concurrent.futures import TimeoutError as Late
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from runner.base.errors import Refused, Unavailable
from runner.base.textfile import FileError
from runner.control.controller import Controller
from runner.control.owner_totals import STORED_AT_ONCE
from runner.core.job.states import Finished
from runner.core.ports.schedules import FiringRow
from runner.files.job.cron import Cron
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.schedules.trigger import LABEL, MAX_PER_ROUND, MAX_WAIT_S, job_name
from tests.fakes.daemon.schedules import Clockwork
from tests.unit.runner.server.api.test_jobs import wait_until

NIGHTLY = "cron: 30 2 * * *, timezone: Europe/Berlin"
HOURLY = "cron: 0 * * * *"


@pytest.fixture
def site(tmp_path: Path) -> Clockwork:
    site = Clockwork(tmp_path, Caller(os.getuid(), os.getgid()))
    site.at("2030-01-01 12:00")
    return site


# --- a job at its time


def test_no_job_comes_before_the_first_time_and_one_at_it(site: Clockwork) -> None:
    site.make(NIGHTLY)
    site.until("2030-01-02 01:29")
    assert site.jobs() == []
    site.until("2030-01-02 01:30")
    [job] = site.jobs()
    assert job.name == "nightly-20300102-0230"
    assert job.labels[LABEL] == "1"
    assert site.came() == [("01-02 01:30", "submitted")]


def test_the_job_of_a_time_is_no_schedule_itself_and_belongs_to_whoever_made_it(site: Clockwork) -> None:
    site.make(NIGHTLY)
    site.until("2030-01-02 02:00")
    [job] = site.jobs()
    assert '"schedule":null' in job.revision
    assert f'"uid":{os.getuid()}' in job.revision


def test_the_name_of_a_job_is_a_name_however_long_that_of_its_schedule_is(site: Clockwork) -> None:
    name = job_name("n" * 63, site.clock.now())
    assert len(name) == 63
    assert name.endswith("-20300101-1200")


def test_in_spring_the_time_that_does_not_exist_makes_one_job(site: Clockwork) -> None:
    site.at("2030-03-30 12:00")
    site.make(NIGHTLY)
    site.until("2030-04-01 12:00")
    assert site.came() == [("03-31 01:00", "submitted"), ("04-01 00:30", "left_out")]
    assert site.names() == ["nightly-20300331-0300"]


def test_in_autumn_the_time_that_comes_twice_makes_one_job(site: Clockwork) -> None:
    site.at("2030-10-26 12:00")
    site.make(f"{NIGHTLY}, overlap: queue")
    site.until("2030-10-28 12:00")
    assert site.came() == [("10-27 00:30", "submitted"), ("10-28 01:30", "submitted")]


# --- downtime


def test_times_that_passed_while_the_daemon_was_down_are_left_out(site: Clockwork) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 17:30")
    site.boot()
    site.tick()
    site.work()
    assert site.jobs() == []
    assert site.came() == [("01-01 17:00", "left_out")]
    assert site.last().text == "nobody was there; 5 times left out"
    site.until("2030-01-01 18:00")
    assert site.names() == ["nightly-20300101-1800"]


def test_times_that_passed_while_the_daemon_was_down_make_one_job_where_that_is_wanted(
    site: Clockwork,
) -> None:
    site.make(f"{HOURLY}, missed: run_once")
    site.at("2030-01-01 17:30")
    site.boot()
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1700"]
    assert site.last().text == "4 times before it left out"


def test_a_restart_over_a_time_loses_nothing(site: Clockwork) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00:20")
    site.boot()
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1300"]


# --- a job that is not finished


def test_a_time_is_left_out_while_the_job_before_is_unfinished(site: Clockwork) -> None:
    site.make(HOURLY)
    site.until("2030-01-01 14:30")
    assert site.came() == [("01-01 13:00", "submitted"), ("01-01 14:00", "left_out")]
    assert site.last().text == "job 1 of an earlier time is not finished"
    site.end("1")
    site.until("2030-01-01 15:30")
    assert site.names() == ["nightly-20300101-1300", "nightly-20300101-1500"]


def test_jobs_queue_up_where_that_is_wanted(site: Clockwork) -> None:
    site.make(f"{HOURLY}, overlap: queue")
    site.until("2030-01-01 15:30")
    assert len(site.jobs()) == 3
    assert not any(isinstance(row.job.state, Finished) for row in site.jobs())


def test_a_job_takes_the_place_of_the_one_before_where_that_is_wanted(site: Clockwork) -> None:
    site.make(f"{HOURLY}, overlap: replace")
    site.until("2030-01-01 15:30")
    states = [row.job.state for row in site.jobs()]
    assert [state.kind for state in states] == ["finished", "finished", "preparing"]
    assert site.last().text == "in place of job 2"


def test_a_job_is_not_replaced_by_one_that_is_refused(site: Clockwork) -> None:
    data = site.directory / "corpus.txt"
    data.write_text("words\n" * 100)
    site.make(f"{HOURLY}, overlap: replace", more=f"mounts: [{{source: {data}, target: /data/corpus}}]\n")
    site.until("2030-01-01 13:30")
    data.unlink()
    site.until("2030-01-01 14:30")
    assert site.came() == [("01-01 13:00", "submitted"), ("01-01 14:00", "refused")]
    assert "corpus.txt" in site.last().text
    assert [row.job.state.kind for row in site.jobs()] == ["preparing"]
    data.write_text("words\n" * 100)
    site.until("2030-01-01 15:30")
    assert site.came()[-1] == ("01-01 15:00", "submitted")


def test_a_job_that_could_never_start_is_refused_with_the_reason_and_the_next_time_is_tried(
    site: Clockwork,
) -> None:
    text = b"name: fetch\nworkload: {kind: causal_lm, data: stdlib}\n"
    fetch = Submission(str(site.directory / "fetch.yaml"), text)
    site.service.submission.submit(site.me, fetch)
    site.make(HOURLY, more="queue: {after: [fetch]}\n")
    site.end("1")
    site.until("2030-01-01 13:30")
    assert site.came() == [("01-01 13:00", "refused")]
    assert "job.yaml:4:17: queue.after[0].job: job 1 (fetch) has been cancelled already" in site.last().text
    site.service.submission.submit(site.me, fetch)
    site.until("2030-01-01 14:30")
    assert site.came()[-1] == ("01-01 14:00", "submitted")


def test_the_jobs_of_a_schedule_are_held_to_the_size_of_their_users_job_files(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(site.service.settings.__dict__, "job_file_bytes_per_user", 1000)
    site.make(HOURLY)
    site.until("2030-01-01 13:30")
    assert site.came() == [("01-01 13:00", "refused")]
    assert "of job files, and has " in site.last().text


def test_schedules_that_are_removed_at_once_fill_no_disk_with_their_files(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = site.make(HOURLY)
    site.schedules.remove(site.me, str(row.id))
    monkeypatch.setitem(site.service.settings.__dict__, "job_file_bytes_per_user", len(row.text))
    for _ in range(STORED_AT_ONCE - 1):
        site.schedules.remove(site.me, str(site.make(HOURLY).id))
    with pytest.raises(Refused, match=r"may store .* of job files an hour, and has stored much more"):
        site.make(HOURLY)


# --- steering


def test_a_paused_schedule_submits_nothing_and_makes_up_for_nothing(site: Clockwork) -> None:
    site.make(f"{HOURLY}, missed: run_once")
    site.schedules.pause(site.me, "nightly")
    site.until("2030-01-01 15:30")
    assert site.came() == []
    assert site.schedules.resume(site.me, "1").state == "active"
    site.until("2030-01-01 16:30")
    assert site.names() == ["nightly-20300101-1600"]


def test_a_removed_schedule_is_gone_and_its_jobs_stay(site: Clockwork) -> None:
    site.make(HOURLY)
    site.until("2030-01-01 13:30")
    site.schedules.remove(site.me, "nightly")
    site.until("2030-01-01 16:00")
    assert len(site.jobs()) == 1
    assert site.schedules.listed(site.me, every=False) == ()
    assert [row.state for row in site.schedules.listed(site.me, every=True)] == ["removed"]
    with pytest.raises(Refused, match="is removed"):
        site.schedules.resume(site.me, "1")
    assert site.make(HOURLY).id == 2  # the name is free again


def test_pausing_twice_is_no_error(site: Clockwork) -> None:
    site.make(HOURLY)
    assert site.schedules.pause(site.me, "1") == site.schedules.pause(site.me, "1")


def test_a_schedule_ends_with_its_last_time(site: Clockwork) -> None:
    site.make(f'{HOURLY}, overlap: queue, until: "2030-01-01T14:00:00Z"')
    site.until("2030-01-01 16:00")
    assert site.came() == [("01-01 13:00", "submitted"), ("01-01 14:00", "submitted")]
    assert site.schedules.find(site.me, "1").state == "over"
    with pytest.raises(Refused, match="is over"):
        site.schedules.resume(site.me, "1")


def test_a_schedule_whose_end_passed_in_a_downtime_is_over(site: Clockwork) -> None:
    site.make(f'{HOURLY}, missed: run_once, until: "2030-01-01T14:00:00Z"')
    site.at("2030-01-02 16:00")
    site.boot()
    site.until("2030-01-02 17:00")
    assert site.names() == ["nightly-20300101-1400"]
    assert site.schedules.find(site.me, "1").state == "over"


# --- kills and a world that is not ready


def test_a_kill_between_noticing_and_submitting_loses_nothing(site: Clockwork) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    site.tick()  # noticed; the lane has not begun
    site.boot()
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1300"]
    assert site.came() == [("01-01 13:00", "submitted")]


def test_a_kill_between_submitting_and_writing_so_doubles_nothing(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(f"{HOURLY}, overlap: replace")
    site.until("2030-01-01 13:30")
    site.at("2030-01-01 14:00")
    site.tick()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(site.books, "settle", killed)
    with pytest.raises(KeyboardInterrupt):
        site.work()
    assert len(site.jobs()) == 2
    site.boot()
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1300", "nightly-20300101-1400"]
    assert site.came() == [("01-01 13:00", "submitted"), ("01-01 14:00", "submitted")]


def test_a_world_that_is_not_ready_is_tried_again(site: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make(HOURLY)

    def down(*_: object) -> None:
        raise Unavailable("no answer from the file system in 10 s")

    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.submission), "resolve", down)
        site.until("2030-01-01 13:05")
    assert site.came() == [("01-01 13:00", "due")]
    assert "no answer" in site.last().text
    site.until("2030-01-01 13:06", every_s=30)
    assert site.came() == [("01-01 13:00", "submitted")]


def test_while_a_time_cannot_be_submitted_the_next_ones_are_left_out(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(HOURLY)

    def down(*_: object) -> None:
        raise Unavailable("no answer from the file system in 10 s")

    monkeypatch.setattr(type(site.service.submission), "resolve", down)
    site.until("2030-01-01 15:05")
    assert site.came() == [("01-01 13:00", "due"), ("01-01 14:00", "left_out"), ("01-01 15:00", "left_out")]


def test_a_mistake_of_ours_stops_neither_the_loop_nor_the_schedule(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(HOURLY)

    def wrong(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.submission), "resolve", wrong)
        site.until("2030-01-01 13:10")
    assert site.last().text == "ZeroDivisionError: division by zero"
    site.until("2030-01-01 14:10")
    assert site.came() == [("01-01 13:00", "refused"), ("01-01 14:00", "submitted")]


def test_a_full_disk_stops_nothing(site: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make(HOURLY)

    def full(*_: object) -> None:
        raise Unavailable("store.db: database or disk is full")

    site.at("2030-01-01 13:00")
    with monkeypatch.context() as patched:
        patched.setattr(site.books, "record_firing", full)
        site.tick()
        assert site.timetable.wait_s() > 1  # it does not spin
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1300"]


# --- clocks that jump


def test_a_clock_that_is_set_back_makes_no_time_come_twice(site: Clockwork) -> None:
    site.make(f"{HOURLY}, overlap: queue")
    site.until("2030-01-01 15:30")
    site.clock.jump(-2 * 3600)  # 13:30 again
    site.until("2030-01-01 16:30")
    assert [name[-4:] for name in site.names()] == ["1300", "1400", "1500", "1600"]


def test_a_clock_that_is_set_forward_makes_no_storm(site: Clockwork) -> None:
    site.make(f"{HOURLY}, overlap: queue, missed: run_once")
    site.clock.jump(365 * 86400 + 1800)
    site.tick()
    site.work()
    assert site.names() == ["nightly-20310101-1200"]


def test_a_clock_that_was_wrong_for_a_while_keeps_no_schedule_silent(site: Clockwork) -> None:
    site.make(f"{HOURLY}, overlap: queue")
    site.clock.jump(365 * 86400)
    site.until("2031-01-01 13:30")
    site.clock.jump(-365 * 86400)
    site.boot()  # even when it is put right while nobody looks
    site.until("2030-01-01 14:30")
    assert [name[4 + 4 :] for name in site.names()][-1] == "20300101-1400"


# --- refused at once


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ('cron: "0 0 30 2 *"', "schedule.cron: "),
        ("cron: 0 0 * * *, timezone: Europe/Bonn", 'schedule.timezone: there is no time zone "Europe/Bonn"'),
        (
            f'{HOURLY}, until: "2030-01-01T12:30:00Z"',
            "schedule.until: is over before the first time, 2030-01-01T13:00",
        ),
    ],
)
def test_a_schedule_that_never_comes_is_refused_with_its_place(
    site: Clockwork, schedule: str, words: str
) -> None:
    with pytest.raises(FileError) as refused:
        site.make(schedule)
    assert words in str(refused.value)
    assert "job.yaml:3:" in str(refused.value)


def test_a_schedule_of_a_matrix_is_refused(site: Clockwork) -> None:
    with pytest.raises(FileError, match="schedule: cannot be combined with a matrix"):
        site.make(HOURLY, more="matrix: {values: {seed: [1, 2]}}\n")


def test_a_second_schedule_of_a_name_is_refused(site: Clockwork) -> None:
    site.make(HOURLY)
    with pytest.raises(Refused, match="nightly: schedule 1 of yours has this name; runner schedule remove 1"):
        site.make(HOURLY)
    assert site.make(HOURLY, name="other").id == 2


def test_nobody_has_schedules_without_end(site: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.services.schedules.service.MAX_PER_USER", 2)
    site.make(HOURLY, name="a")
    site.make(HOURLY, name="b")
    with pytest.raises(Refused, match="c: you have 2 schedules already"):
        site.make(HOURLY, name="c")
    site.schedules.remove(site.me, "a")
    assert site.make(HOURLY, name="c").id == 3


def test_many_that_are_due_at_once_are_looked_at_in_turns(site: Clockwork) -> None:
    for number in range(MAX_PER_ROUND + 3):
        site.make(HOURLY, name=f"s{number}")
    site.at("2030-01-01 13:00")
    site.tick()
    assert len(site.books.due()) == MAX_PER_ROUND
    assert site.timetable.wait_s() < 0.1
    site.tick()
    site.work()
    assert len(site.jobs()) == MAX_PER_ROUND + 3


def test_a_schedule_whose_time_zone_has_gone_rests_and_says_why(site: Clockwork) -> None:
    row = site.make(HOURLY)
    site.until("2030-01-01 13:00")
    with site.store.transaction() as connection:
        connection.execute("UPDATE schedules SET terms = json_set(terms, '$.timezone', 'Europe/Bonn')")
    site.boot()
    site.tick()
    found = site.books.known(row.id)
    assert site.schedules.next_times(found) == ()
    assert [row.at.utcoffset() for row in site.schedules.firings(found)] == [timedelta(0)]
    assert (found.state, found.note.split(":")[0]) == (
        "paused",
        'there is no time zone "Europe/Bonn"; for example Europe/Berlin or UTC',
    )


def test_an_idle_look_reads_nothing(site: Clockwork) -> None:
    site.make(NIGHTLY)
    asked = site.asked()
    site.clock.forward(1)
    site.tick()
    assert not asked
    site.at("2030-01-02 01:30")
    site.tick()
    assert asked


# --- the thread that knows when to look


def test_the_thread_looks_when_the_time_has_come_and_ends(site: Clockwork) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    site.timetable.start()
    wait_until(lambda: site.came() or None)
    site.timetable.stop()
    assert site.came() == [("01-01 13:00", "due")]


def test_two_that_wait_are_both_tried_again(site: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make(HOURLY)
    site.make("cron: 1 * * * *", name="later")

    def down(*_: object) -> None:
        raise Unavailable("no answer from the file system in 10 s")

    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.submission), "resolve", down)
        site.until("2030-01-01 13:01", every_s=60)
    site.until("2030-01-01 13:00:30")
    site.until("2030-01-01 13:02", every_s=1)
    assert [row.name[:5] for row in site.jobs()] == ["night", "later"]


def test_the_thread_outlives_a_mistake(site: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    mistakes = [ZeroDivisionError("division by zero")]

    def wrong(*_: object) -> tuple[str, ...]:
        if mistakes:
            raise mistakes.pop()
        return ()

    monkeypatch.setattr("runner.services.schedules.trigger.RETRY_ROUND_S", 0.01)
    monkeypatch.setattr(site.books, "unfinished", wrong)
    site.timetable.start()
    wait_until(lambda: site.came() or None)
    site.timetable.stop()
    assert not mistakes


def test_the_next_look_is_at_the_next_time_and_the_clock_is_looked_at_meanwhile(site: Clockwork) -> None:
    assert site.timetable.wait_s() == MAX_WAIT_S
    site.make(HOURLY)
    assert site.timetable.wait_s() == MAX_WAIT_S
    site.at("2030-01-01 12:59:55")
    assert site.timetable.wait_s() == 5
    site.at("2030-01-01 13:00:01")
    assert 0 < site.timetable.wait_s() < 1


def test_what_was_due_when_a_schedule_was_removed_is_left_out(site: Clockwork) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    site.tick()
    site.boot()
    site.schedules.remove(site.me, "1")
    site.tick()
    site.work()
    assert site.came() == [("01-01 13:00", "left_out")]
    assert site.jobs() == []


def test_a_paused_schedule_submits_no_time_that_could_not_be_submitted_before(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(HOURLY)
    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.submission), "resolve", unavailable)
        site.until("2030-01-01 13:00")
    site.schedules.pause(site.me, "1")
    site.until("2030-01-01 13:05")
    assert (site.came(), site.last().text) == ([("01-01 13:00", "left_out")], "the schedule was paused")
    assert site.jobs() == []


@pytest.mark.parametrize("how", ["pause", "remove"])
def test_a_time_whose_worker_has_begun_is_left_out_once_its_schedule_rests(site: Clockwork, how: str) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    site.tick()
    getattr(site.schedules, how)(site.me, "1")
    site.work()
    assert (site.came(), site.jobs()) == ([("01-01 13:00", "left_out")], [])


def test_the_job_of_an_earlier_time_does_not_take_the_place_of_a_later_one(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make("cron: '* * * * *', overlap: replace")
    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.submission), "resolve", unavailable)
        site.at("2030-01-01 12:01:45")
        site.tick()
        site.work()
    site.at("2030-01-01 12:02:00")
    site.tick()
    site.work()
    site.at("2030-01-01 12:02:20")
    site.tick()
    site.work()
    assert site.came() == [("01-01 12:01", "left_out"), ("01-01 12:02", "submitted")]
    assert [row.job.state.kind for row in site.jobs()] == ["preparing"]


def unavailable(*_: object) -> None:
    raise Unavailable("no answer from the file system in 10 s")


def test_a_daemon_that_is_stuck_finds_the_occasion_due_later(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    site.tick()

    def stuck(*_: object) -> None:
        raise Late

    with monkeypatch.context() as patched:
        patched.setattr(type(site.service.daemon), "run_exclusively", stuck)
        site.work()
    assert site.came() == [("01-01 13:00", "due")]
    site.boot()
    site.tick()
    site.work()
    assert site.names() == ["nightly-20300101-1300"]


# --- the exclusive section


def test_no_cron_expression_is_evaluated_while_others_wait_for_the_exclusive_section(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, held, evaluated = type(site.service.daemon), [], []
    run, after = daemon.run_exclusively, Cron.after

    def exclusively(self: Controller, work: Callable[[], object]) -> object:
        def holding() -> object:
            held.append(1)
            try:
                return work()
            finally:
                held.pop()

        return run(self, holding)

    def counted(self: Cron, moment: datetime) -> datetime | None:
        evaluated.append(len(held))
        return after(self, moment)

    monkeypatch.setattr(daemon, "run_exclusively", exclusively)
    monkeypatch.setattr(Cron, "after", counted)
    site.make(f"{HOURLY}, overlap: replace")
    site.until("2030-01-01 15:30")
    site.schedules.pause(site.me, "1")
    site.schedules.resume(site.me, "1")
    site.until("2030-01-01 16:30")
    assert len(site.jobs()) == 4
    assert evaluated
    assert not any(evaluated)


def test_a_change_of_one_schedule_evaluates_no_other(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        site.make(HOURLY, name=f"n{number}")
    evaluated, after = [], Cron.after

    def counted(self: Cron, moment: datetime) -> datetime | None:
        evaluated.append(moment)
        return after(self, moment)

    monkeypatch.setattr(Cron, "after", counted)
    site.schedules.pause(site.me, "3")
    site.tick()
    assert evaluated == []


def test_a_plan_that_a_change_overtakes_is_not_written(
    site: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make(HOURLY)
    site.at("2030-01-01 13:00")
    due = site.books.due

    def removed_meanwhile() -> tuple[FiringRow, ...]:
        site.schedules.remove(site.me, "1")
        return due()

    with monkeypatch.context() as patched:
        patched.setattr(site.books, "due", removed_meanwhile)
        site.tick()
    site.tick()
    site.work()
    assert site.jobs() == []
