"""What the API shows of a job, as plain values."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Finished, Outcome, Queued, State
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner
from runner.server.api import views

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("state", [Queued(NOW, "img"), Finished(NOW, Outcome.SUCCEEDED, "completed")])
@pytest.mark.parametrize("saved", [None, 40])
def test_the_saved_step_of_a_job_is_shown_whatever_its_state(state: State, saved: int | None) -> None:
    row = JobRow(
        Job("1", state, saved=saved), "train", Owner(1000, 1000, "ann"), NOW, 50, RevisionText.of("{}")
    )
    shown = views.summary(row, "", None)
    assert (shown["saved_step"], shown["progress"]) == (saved, None)
    assert views.summary(replace(row, priority=9), "", None)["priority"] == 9
