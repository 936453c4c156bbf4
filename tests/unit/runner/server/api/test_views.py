"""Views of a job in the API, as plain values."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jobs.contract import Phase, Status
from runner.core.job.attempt import ProgramStart
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Finished, Held, Outcome, Queued, State
from runner.core.ports.store import AttemptRow, JobRow
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


def test_a_job_that_is_held_or_has_ended_is_not_told_to_wait_for_what_was_said_before() -> None:
    known = Job("1", Queued(NOW, "img"))
    row = JobRow(known, "train", Owner(1, 1, "ann"), NOW, 50, RevisionText.of("{}"))
    assert views.summary(row, "waits for 1 GPU", None)["why"] == "waits for 1 GPU"
    held = replace(row, job=replace(known, state=Held(NOW, "disk full: a disk or a quota is full")))
    assert views.summary(held, "1.exit.json: No space left on device", None)["why"].startswith("disk full")
    ended = replace(row, job=replace(known, state=Finished(NOW, Outcome.CANCELLED, "cancelled by ann")))
    assert views.summary(ended, "waits for 1 GPU", None)["why"] == "cancelled by ann"


def test_the_saved_step_of_a_job_that_runs_is_what_it_has_reported() -> None:
    row = JobRow(
        Job("1", Queued(NOW, "img"), saved=40), "train", Owner(1, 1, "ann"), NOW, 50, RevisionText.of("{}")
    )
    told = Status(phase=Phase.TRAIN, time=1.0, step=550, checkpoint_step=540)
    assert views.summary(row, "", told)["saved_step"] == 540
    assert views.summary(row, "", told.model_copy(update={"checkpoint_step": None}))["saved_step"] == 40


def test_a_version_is_no_step_that_an_attempt_has_resumed_from() -> None:
    row = AttemptRow("1", 2, 1, "img", NOW, NOW, None, None, None, "", None, None)
    assert (
        views.attempt(row, None, None, ProgramStart(3, "state.pt", known_as="version 3"))["resumed_from"]
        is None
    )


def test_an_attempt_of_a_program_shows_what_it_resumed_from_and_what_was_set_aside_for_it() -> None:
    row = AttemptRow("1", 2, 1, "img", NOW, NOW, None, None, None, "", None, None)
    start = ProgramStart(200, "out/c-200", ("out/c-300",), "lineages/1/set-aside/2")
    shown = views.attempt(row, None, None, start)
    assert (shown["resumed_from"], shown["set_aside"]) == (200, ["lineages/1/set-aside/2/out/c-300"])
    plain = views.attempt(row, None, None)
    assert (plain["resumed_from"], plain["set_aside"]) == (None, [])
