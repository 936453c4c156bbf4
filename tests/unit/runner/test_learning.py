"""What the latest jobs of a name say about how long the next one takes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from runner.core.job import Job, Preparing
from runner.core.policy.history import History
from runner.learning import LEAST_S, Learned, rounded
from runner.ports import JobRow, Lending, Owner

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Past:
    """Satisfies ``runner.ports.Past``."""

    lasted: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    asked: int = 0

    def since(self, at: datetime) -> Iterable[Lending]:
        del at
        return ()

    def lasted_s(self, owner: str, name: str) -> tuple[float, ...]:
        self.asked += 1
        return self.lasted.get((owner, name), ())


def row(job_id: str, *, ran_s: float = 0, limit: timedelta | None = None) -> JobRow:
    job = Job(job_id, Preparing(NOW), time_limit=limit, history=History(ran=timedelta(seconds=ran_s)))
    return JobRow(job, "train", Owner(1, 1, "ann"), NOW, 50, "{}")


@pytest.mark.parametrize(("lasted", "told"), [((), None), ((3.0,), 60.0), ((61.0, 70.0), 75.0)])
def test_the_longest_counts_rounded_up(lasted: tuple[float, ...], told: float | None) -> None:
    assert rounded(lasted) == told


def test_what_has_run_already_is_not_still_to_come() -> None:
    learned = Learned(Past({("ann", "train"): (70.0, 5000.0)}))
    whole = learned.left_s(row("1"))
    assert whole is not None
    assert 5000 <= whole < 5000 * 1.25
    assert learned.left_s(row("2", ran_s=1000)) == whole - 1000
    assert learned.left_s(row("3", ran_s=9000)) == pytest.approx(whole / 10)
    assert Learned(Past({("ann", "train"): (1.0,)})).left_s(row("4", ran_s=9000)) == LEAST_S


def test_a_limit_needs_no_past_and_without_a_past_nothing_is_known() -> None:
    past = Past()
    assert Learned(past).left_s(row("1", limit=timedelta(hours=1))) is None
    assert past.asked == 0
    assert Learned(None).left_s(row("1")) is None
    assert Learned(None).again("ann", "train") == ()


def test_jobs_hear_of_it_when_what_is_known_changes_and_only_then() -> None:
    past = Past()
    learned = Learned(past)
    assert [learned.left_s(row(job_id)) for job_id in "12"] == [None, None]
    assert past.asked == 1
    past.lasted["ann", "train"] = (100.0,)
    assert sorted(learned.again("ann", "train")) == ["1", "2"]
    past.lasted["ann", "train"] = (101.0, 100.0)
    assert learned.again("ann", "train") == ()
    assert learned.again("ann", "other") == ()


def test_a_name_is_forgotten_with_its_last_job() -> None:
    past = Past({("ann", "train"): (100.0,)})
    learned = Learned(past)
    learned.left_s(row("1"))
    learned.left_s(row("2"))
    for job_id in ("1", "2", "2"):
        learned.forget(job_id)
    assert learned.again("ann", "train") == ()
    learned.left_s(row("3"))
    assert past.asked == 2
