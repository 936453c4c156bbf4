"""The totals of users and groups follow each job, and nothing stays of those that have ended."""

from datetime import UTC, datetime

from runner.control.owner_totals import OwnerTotals
from runner.core.job.model import Job
from runner.core.job.states import Finished, Held, Outcome, Preparing, Queued, State
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def row(job_id: str, state: State, owner: str = "ann", text: str = "12345") -> JobRow:
    return JobRow(Job(job_id, state), "job", Owner(1, 1, owner), NOW, 50, text, {})


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
