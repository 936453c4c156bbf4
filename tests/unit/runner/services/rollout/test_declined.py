"""Changes that come to nothing: fewer steps than are done, and what is said where nobody answers."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.contract import Phase, Status, dump
from runner.agent.attempts.service import AttemptService
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.store import JobRow
from tests.unit.runner.server.api.test_jobs import error
from tests.unit.runner.server.api.test_rollouts import BASE, CACHED, FASTER_LATER, WIDER, Place

ALLOWED = "allow: [changed_training]\n"
FEWER = BASE.replace("steps: 400", "steps: 60") + ALLOWED


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    site = Place(tmp_path)
    yield site
    site.verifier.stop()
    site.service.daemon.stop()


# --- Fewer steps than are done


def test_fewer_steps_than_are_done_are_declined_and_what_runs_goes_on(site: Place) -> None:
    site.runs()
    site.saves(80)
    site.writes(1.0, count=60, first=40)
    assert site.apply(FEWER, dry_run=True)["outcome"] == "decline"
    answer = site.apply(FEWER)
    assert (answer["outcome"], answer["revision"]) == ("decline", None)
    assert "workload.steps: 60, and 100 are done" in answer["why"]
    assert answer["facts"]["checkpoint.compatible"] is False
    assert answer["arithmetic"][0].startswith("work       100 of 400 steps are done (25 %)")
    assert "gain       unknown: with the change there are 60 steps" in answer["arithmetic"][-1]
    assert site.job()["attempt"] == 1


def test_steps_that_are_done_before_it_has_stopped_are_too_few(site: Place) -> None:
    site.runs()
    site.writes(1.0, count=10, first=50)  # too few lines for a rate, and another step is on its way
    assert "it may be beyond before it stops" in site.apply(FEWER, dry_run=True)["why"]
    site.writes(5.0, count=50)
    assert "it may be beyond before it stops" in site.apply(FEWER, dry_run=True)["why"]
    more = FEWER.replace("steps: 60", "steps: 90")
    assert site.apply(more, dry_run=True)["outcome"] == "resume"


def test_a_job_that_saves_nothing_when_it_stops_may_go_back_to_fewer_steps(site: Place) -> None:
    on_the_way = "checkpoint: {every: null, every_steps: 100, on_stop: false}\n"
    site.runs(BASE + on_the_way)
    site.saves(40)
    site.writes(1.0, first=40)
    assert site.apply(FEWER + on_the_way, dry_run=True)["outcome"] == "resume"


def test_a_job_at_rest_does_not_take_fewer_steps_than_its_checkpoint_has(site: Place) -> None:
    site.runs()
    site.saves(80)
    site.complete()
    site.until("finished")
    answer = site.apply(FEWER)
    assert (answer["outcome"], answer["revision"]) == ("decline", None)
    assert "workload.steps: 60, and 80 are done" in answer["why"]
    more = site.apply(FEWER.replace("steps: 60", "steps: 500"))
    assert (more["outcome"], more["revision"]) == ("store", 2)


def test_changes_of_a_job_that_does_not_run_are_not_counted_as_those_of_one_that_does(site: Place) -> None:
    site.runs()
    for cache in ("memory", '"off"', "memory"):
        changed = BASE.replace('"off"', cache)
        assert site.apply(changed, at_next_start=True)["outcome"] == "store"
    site.complete()
    site.until("finished")
    assert site.apply(BASE)["outcome"] == "store"
    assert site.service.queries.find("1").job.history.swaps == 0


def test_fewer_steps_are_not_stored_for_a_start_that_would_come_after_them(site: Place) -> None:
    site.runs()
    site.writes(1.0, count=10)
    more = FEWER.replace("steps: 60", "steps: 390")
    answer = site.apply(more, at_next_start=True)
    assert (answer["outcome"], answer["revision"]) == ("decline", None)
    assert "the running attempt goes on to step 400, beyond workload.steps: 390" in answer["why"]


def test_a_rollback_to_fewer_steps_than_are_done_is_refused(site: Place) -> None:
    site.runs(BASE.replace("steps: 400", "steps: 60"))
    site.saves(40)
    site.apply(BASE + ALLOWED)
    site.attempt(2)
    site.saves(80)
    status, _, words = error(site.ask("POST", "/jobs/1/rollback", {}))
    assert status == 403
    assert "revision 1 has workload.steps: 60, and 80 are done in its lineage" in words
    assert site.job()["attempt"] == 2


# --- What is said


def test_what_applies_at_once_is_told_beside_what_waits_for_the_next_attempt(site: Place) -> None:
    site.runs()
    longer = BASE.replace("memory: 1GiB", "memory: 1GiB, time_limit: 3h")
    assert site.apply(longer, dry_run=True)["why"].endswith("; resources.time_limit applies at once")
    later = site.apply(longer + "queue: {preemptible: false}\nstop_grace: 9s\n")
    at_once, rest = later["why"].split("; ")[-2:]
    assert at_once == "queue.preemptible and resources.time_limit apply at once"
    assert rest == "the rest takes effect with the next start"


def test_what_is_saved_is_done_while_an_attempt_has_not_loaded_it_yet(site: Place) -> None:
    site.runs()
    site.saves(40)
    status = Status(phase=Phase.INIT, time=time.time(), step=0, total_steps=400)
    (site.attempt_dir() / "status.json").write_text(dump(status))
    assert site.apply(CACHED, dry_run=True)["arithmetic"][0].startswith("work       40 of 400 steps are done")


def test_a_policy_without_rules_for_changes_is_named_instead_of_a_field_that_is_there(site: Place) -> None:
    (site.directory / "bare.yaml").write_text(
        "policy: 1\nname: bare\non_exit: [{name: again, when: {}, do: resume}]\n"
    )
    site.runs(BASE + "policy: bare.yaml\n")
    for text in (FASTER_LATER + ALLOWED, FASTER_LATER, WIDER):
        why = site.apply(text + "policy: bare.yaml\n")["why"]
        assert "the policy bare has no on_change rule that answers: add extends: default" in why


def test_a_policy_that_declines_whatever_a_file_allows_is_named(site: Place) -> None:
    site.runs(BASE + "policy: strict\n")
    why = site.apply(FASTER_LATER + "policy: strict\n")["why"]
    assert "the policy strict does not take such a change up" in why
    assert "--approve" in site.apply(WIDER + "policy: strict\n")["why"]


def test_the_numbers_of_an_answer_are_of_one_look_at_the_checkpoints(
    site: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that saves between two looks would have a checkpoint of step 80, and 40 steps saved."""
    on_the_way = "checkpoint: {every: null, every_steps: 40, on_stop: false}\n"
    site.runs(BASE + on_the_way)
    site.saves(40)
    site.writes(1.0, first=40)
    look = AttemptService.saved

    def saved(self: AttemptService, row: JobRow, lineage: int) -> SavedCheckpoints:
        found = look(self, row, lineage)
        site.saves(80)
        return found

    monkeypatch.setattr(AttemptService, "saved", saved)
    answer = site.apply(WIDER + on_the_way, dry_run=True)
    step = answer["facts"]["checkpoint.step"]
    assert any(f"{step} of them in a checkpoint" in line for line in answer["arithmetic"])
