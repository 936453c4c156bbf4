"""The totals of users and groups follow each job, and nothing stays of those that have ended."""

from dataclasses import replace
from datetime import UTC, datetime

from runner.control.owner_totals import HOUR_S, STORED_AT_ONCE, OwnerTotals
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Finished, Held, Outcome, Preparing, Queued, State
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def row(job_id: str, state: State, owner: str = "ann", text: str = "12345") -> JobRow:
    return JobRow(Job(job_id, state), "job", Owner(1, 1, owner), NOW, 50, RevisionText.of(text), {})


def test_totals_follow_the_states_of_jobs() -> None:
    totals = OwnerTotals()
    totals.update(row("1", Preparing(NOW)), "vision")
    totals.update(row("2", Queued(NOW, "image")), "vision")
    totals.update(row("3", Queued(NOW, "image"), "bob"), "vision")
    assert totals.queued("ann", "vision") == (2, 3)
    assert totals.job_file_bytes("ann") == 10
    totals.update(row("2", Held(NOW, "why"), text="1234567"), "vision")
    assert totals.queued("ann", "vision") == (1, 2)
    assert totals.job_file_bytes("ann") == 12
    for job_id in ("1", "2"):
        totals.update(row(job_id, Finished(NOW, Outcome.CANCELLED, "cancelled")), "")
    assert totals.queued("ann", "vision") == (0, 1)
    assert totals.job_file_bytes("ann") == 0


def test_a_text_counts_once_however_many_jobs_share_it() -> None:
    totals, text = OwnerTotals(), RevisionText.of("12345")
    rows = [replace(row(str(number), Queued(NOW, "image")), text=text) for number in range(3)]
    for each in (*rows, rows[0]):
        totals.update(each, "vision")
    totals.update(replace(row("3", Queued(NOW, "image")), text=text.edited((("a",), 1))), "vision")
    assert totals.job_file_bytes("ann") == 5 + len('[[["a"],1]]')
    for each in rows:
        totals.update(replace(each, job=Job(each.job.id, Finished(NOW, Outcome.CANCELLED, "ended"))), "")
    assert totals.job_file_bytes("ann") == 5 + len('[[["a"],1]]')
    totals.update(row("3", Finished(NOW, Outcome.CANCELLED, "ended")), "")
    assert totals.job_file_bytes("ann") == 0


def test_what_is_stored_for_ever_has_a_pace_for_each_user_also_of_jobs_that_end_at_once() -> None:
    totals = OwnerTotals()
    assert all(totals.store("ann", 100, 100, 0.0) for _ in range(STORED_AT_ONCE))
    assert not totals.store("ann", 1, 100, 0.0)
    assert totals.store("bob", 100, 100, 0.0)
    assert totals.store("ann", 50, 100, HOUR_S / 2)
    assert not totals.store("ann", 1, 100, HOUR_S / 2)
