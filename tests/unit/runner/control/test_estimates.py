"""Estimates of the next duration from the latest jobs of a name."""

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest

from runner.control.estimates import LEAST_S, SCHEDULE, RunTimeEstimates, rounded
from runner.core.job.attempt import Allocation, Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Queued, Running
from runner.core.policy.history import History
from runner.core.ports.store import JobRow, SimilarBy
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import JobArray
from tests.fakes.daemon.history import NoHistory

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FIRST = Attempt(1, 1)


@dataclass
class Past(NoHistory):
    """The usage history that a test makes up."""

    lasted: dict[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    asked: int = 0

    def lasted_s(self, owner: str, alike: SimilarBy, which: str) -> tuple[float, ...]:
        self.asked += 1
        return self.lasted.get((owner, alike, which), ())


def row(
    job_id: str, *, name: str = "train", ran_s: float = 0, limit: timedelta | None = None, schedule: str = ""
) -> JobRow:
    job = Job(job_id, Preparing(NOW), time_limit=limit, history=History(ran=timedelta(seconds=ran_s)))
    labels = {SCHEDULE: schedule} if schedule else {}
    return JobRow(job, name, Owner(1, 1, "ann"), NOW, 50, RevisionText.of("{}"), labels)


@pytest.mark.parametrize(("lasted", "told"), [((), None), ((3.0,), 60.0), ((61.0, 70.0), 75.0)])
def test_the_longest_counts_rounded_up(lasted: tuple[float, ...], told: float | None) -> None:
    assert rounded(lasted) == told


def test_what_has_run_already_is_not_still_to_come() -> None:
    learned = RunTimeEstimates(Past({("ann", "name", "train"): (70.0, 5000.0)}))
    whole = learned.remaining_s(row("1"))
    assert whole is not None
    assert 5000 <= whole < 5000 * 1.25
    assert learned.remaining_s(row("2", ran_s=1000)) == whole - 1000
    assert learned.remaining_s(row("3", ran_s=9000)) == pytest.approx(whole / 10)
    assert (
        RunTimeEstimates(Past({("ann", "name", "train"): (1.0,)})).remaining_s(row("4", ran_s=9000))
        == LEAST_S
    )


def test_a_job_with_a_time_limit_needs_no_estimate() -> None:
    past = Past()
    assert RunTimeEstimates(past).remaining_s(row("1", limit=timedelta(hours=1))) is None
    assert past.asked == 0


def test_jobs_hear_of_it_when_what_is_known_changes_and_only_then() -> None:
    past = Past()
    learned = RunTimeEstimates(past)
    assert [learned.remaining_s(row(job_id)) for job_id in "12"] == [None, None]
    assert past.asked == 1
    past.lasted["ann", "name", "train"] = (100.0,)
    assert sorted(learned.update(row("0"))) == ["1", "2"]
    past.lasted["ann", "name", "train"] = (101.0, 100.0)
    assert learned.update(row("0")) == ()
    assert learned.update(row("0", name="other")) == ()


def test_a_name_is_forgotten_with_its_last_job() -> None:
    past = Past({("ann", "name", "train"): (100.0,)})
    learned = RunTimeEstimates(past)
    learned.remaining_s(row("1"))
    learned.remaining_s(row("2"))
    for job_id in ("1", "2", "2"):
        learned.forget(job_id)
    assert learned.update(row("0")) == ()
    learned.remaining_s(row("3"))
    assert past.asked == 2


def test_jobs_of_another_name_tell_nothing() -> None:
    past = Past({("ann", "name", "short"): (10.0, 10.0)})
    learned = RunTimeEstimates(past)
    assert learned.remaining_s(row("1", name="long")) is None
    assert learned.sources == {}
    assert learned.update(row("0", name="short")) == ()


def test_jobs_of_a_matrix_learn_from_those_of_it_that_have_ended() -> None:
    past, sweep = Past(), JobArray("7")
    learned = RunTimeEstimates(past)
    assert [learned.remaining_s(row(job_id, name=f"big-{job_id}"), sweep) for job_id in "89"] == [None, None]
    past.lasted["ann", "matrix", "7"] = (3.0,)
    assert sorted(learned.update(row("7", name="big-7"), sweep)) == ["8", "9"]
    assert learned.remaining_s(row("9", name="big-9"), sweep) == LEAST_S


def test_a_matrix_without_a_past_has_that_of_its_jobs_names() -> None:
    learned = RunTimeEstimates(Past({("ann", "name", "big-2"): (3600.0,)}))
    told = learned.remaining_s(row("8", name="big-2"), JobArray("7"))
    assert told is not None
    assert told >= 3600


def test_jobs_of_a_schedule_learn_from_its_earlier_ones() -> None:
    learned = RunTimeEstimates(Past({("ann", "schedule", "5"): (70.0,)}))
    assert learned.remaining_s(row("9", name="nightly-20300101-0200", schedule="5")) == 75.0
    assert learned.remaining_s(row("10", name="nightly-20300101-0200", schedule="6")) is None


def test_a_job_that_reports_its_steps_is_estimated_by_its_own_rate() -> None:
    learned = RunTimeEstimates(Past())
    facts: dict[str, object] = {"progress.step": 10, "progress.total": 110}
    assert learned.observe_progress("1", 100.0, facts, FIRST) is None
    assert learned.observe_progress("1", 102.0, {**facts, "progress.step": 12}, FIRST) is None
    assert learned.observe_progress("1", 110.0, {**facts, "progress.step": 30}, FIRST) == 40.0
    assert learned.remaining_s(row("1")) == 40.0
    assert learned.remaining_s(row("1", limit=timedelta(hours=9))) is None
    assert learned.observe_progress("1", 111.0, {"progress.step": 31}, FIRST) is None
    later = learned.observe_progress("1", 200.0, {**facts, "progress.step": 30}, replace(FIRST, number=2))
    assert later is None, "another attempt has another rate"
    learned.forget("1")
    assert learned.remaining_s(row("1")) is None


def test_the_end_of_a_job_is_known_to_a_tenth_after_a_tenth_of_its_steps() -> None:
    """Steps whose times scatter, with evaluations and saves between them and a slow beginning."""
    dice = random.Random(5)  # noqa: S311 - no secret
    errors = []
    for number in range(200):
        total, step_s = dice.randrange(200, 5000), dice.lognormvariate(-1.0, 1.0)
        pause_every, pause_s = dice.randrange(10, 60), dice.uniform(1, 20) * step_s
        times, at_s = [0.0], dice.uniform(5, 60)
        for step in range(1, total + 1):
            slow = 3.0 if step < total // 100 else 1.0
            at_s += slow * step_s * dice.lognormvariate(0.0, 0.4) + pause_s * (step % pause_every == 0)
            times.append(at_s)
        learned, known = RunTimeEstimates(Past()), None
        for step in range(1, total // 10 + 1):
            facts = {"progress.step": step, "progress.total": total}
            known = learned.observe_progress(str(number), times[step], facts, FIRST)
        assert known is not None
        errors.append(abs(times[total // 10] + known - times[-1]) / times[-1])
    assert median(errors) <= 0.1


def test_what_comes_before_the_first_step_is_not_part_of_the_rate() -> None:
    learned = RunTimeEstimates(Past())
    for at_s in (100.0, 105.0, 160.0):  # a minute of loading and compiling
        assert learned.observe_progress("1", at_s, {"progress.step": 0, "progress.total": 100}, FIRST) is None
    assert learned.observe_progress("1", 170.0, {"progress.step": 10, "progress.total": 100}, FIRST) == 90.0


def test_a_first_step_that_was_seen_late_is_where_the_rate_begins() -> None:
    """A minute of compiling reports nothing, and the first probe after it sees ten steps."""
    learned = RunTimeEstimates(Past())
    facts: dict[str, object] = {"progress.step": 0, "progress.total": 100}
    assert learned.observe_progress("1", 100.0, facts, FIRST) is None
    assert learned.observe_progress("1", 170.0, {**facts, "progress.step": 10}, FIRST, 161.0) == 90.0
    assert learned.observe_progress("1", 200.0, {**facts, "progress.step": 40}, FIRST, 161.0) == 60.0


def test_a_first_step_of_which_nobody_saw_more_than_the_later_ones_changes_no_rate() -> None:
    learned = RunTimeEstimates(Past())
    facts: dict[str, object] = {"progress.step": 20, "progress.total": 100}
    assert learned.observe_progress("1", 100.0, facts, FIRST, 81.0) is None
    assert learned.observe_progress("1", 110.0, {**facts, "progress.step": 30}, FIRST, 81.0) == 70.0


def test_the_end_that_a_job_reports_is_counted_from_its_report() -> None:
    learned = RunTimeEstimates(Past())
    facts = {"progress.step": 0, "progress.total": 100}
    learned.observe_progress("1", 100.0, facts, FIRST)
    assert learned.reported_end_s("1", 1) is None
    learned.observe_progress("1", 150.0, {**facts, "progress.step": 50}, FIRST)
    assert learned.remaining_s(row("1")) == 50.0
    assert learned.reported_end_s("1", 1) == 200.0
    assert learned.reported_end_s("1", 2) is None, "another attempt is at another step"


def test_a_job_whose_versions_are_no_steps_needs_as_long_as_it_has_reported() -> None:
    learned = RunTimeEstimates(Past())
    for step in (0, 50):
        facts: dict[str, object] = {"progress.step": step, "progress.total": 100}
        learned.observe_progress("1", 100.0 + step, facts, FIRST)
    job = Job("1", Queued(NOW, "image"), saved=3, has_versions=True)
    assert learned.remaining_s(replace(row("1"), job=job)) == 50.0


def test_a_job_that_has_another_revision_by_now_is_not_known_by_its_old_steps() -> None:
    learned = RunTimeEstimates(Past())
    for step in (0, 50):
        learned.observe_progress("1", 100.0 + step, {"progress.step": step, "progress.total": 100}, FIRST)
    running = Job("1", Running(NOW, "image", FIRST, Allocation()), revision=2)
    told = [
        learned.remaining_s(replace(row("1"), job=job))
        for job in (running, replace(running, state=Queued(NOW, "image")))
    ]
    assert told == [50.0, None], "the present attempt has its own steps until it ends"
