"""Canaries that would show nothing, and canaries whose job comes to rest while they run."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.core.job.states import Held
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.services.job_control import CANARY, _is_held
from tests.unit.runner.server.api.test_jobs import error
from tests.unit.runner.server.api.test_rollouts import BASE, CACHED, FASTER_LATER, WIDER, Place

SCRIPT = """\
workload: {kind: program, command: [./train]}
resources: {cpus: 1, memory: 128MiB}
allow: [changed_training]
"""
OTHER_SCRIPT = SCRIPT.replace("./train", "./train, --fast")
LARGER = SCRIPT.replace("128MiB", "256MiB")
ECONOMICAL = """\
policy: 1
name: economical
on_exit: [{name: again, when: {}, do: resume}]
on_change: [{name: best, when: {econ.best: resume}, do: resume}]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    site = Place(tmp_path)
    yield site
    site.verifier.stop()
    site.service.daemon.stop()


def refused(site: Place, text: str) -> str:
    status, _, words = error(site.change(text, path="/canaries", steps=40))
    assert status == 403
    assert len(site.ask("GET", "/jobs").json()["jobs"]) == 1
    return words


# --- What is refused at once


def test_a_program_that_never_reported_a_step_gets_no_canary(site: Place) -> None:
    site.runs(SCRIPT)
    words = refused(site, LARGER)
    assert "has never reported a step, so a canary cannot be compared with it" in words
    site.saves(40)
    site.writes(1.0)
    assert site.canary(LARGER)["canary"] == "2"


def test_a_dry_run_does_not_hold_the_job_for_its_canary(site: Place) -> None:
    text = BASE.replace("cpus: 1", "cpus: 3")
    cached = text.replace('"off"', "memory")
    site.runs(text)
    site.saves(40)
    site.writes(5.0)
    status, _, words = error(site.change(cached, path="/canaries", steps=40, dry_run=True))
    assert status == 403
    assert "a dry run does not hold the job for one; leave --dry-run out" in words
    assert site.job()["state"] == "running"
    assert site.canary(cached)["parked"] is True


def test_no_canary_begins_at_0_because_the_checkpoints_could_not_be_read(
    site: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.runs(SCRIPT)
    site.writes(1.0)
    monkeypatch.setattr(
        site.service.attempt_service,
        "saved",
        lambda *_: SavedCheckpoints(unverified=("checkpoints: no answer",), complete=False),
    )
    assert "no canary can begin: checkpoints: no answer" in refused(site, LARGER)


def test_steps_of_an_earlier_attempt_count_as_reported(site: Place) -> None:
    again = "on_exit: [{name: again, when: {}, do: resume}]"
    hurried = f"policy: 1\nname: hurried\nbackoff: {{first: 0s, max: 0s}}\n{again}\n"
    (site.directory / "hurried.yaml").write_text(hurried)
    site.runs(f"{SCRIPT}policy: hurried.yaml\n")
    line = json.dumps({"time": 1.0, "step": 1, "loss": 0.5})
    (site.attempt_dir() / "metrics.jsonl").write_text(line + "\n")
    site.end(1)
    site.attempt(2)
    assert site.canary(f"{LARGER}policy: hurried.yaml\n")["canary"] == "2"


def test_a_change_that_is_declined_anyway_says_so_before_it_is_measured(site: Place) -> None:
    site.runs(SCRIPT)
    undeclared = OTHER_SCRIPT.replace("allow: [changed_training]\n", "")
    words = refused(site, undeclared)
    assert "this change is declined, whatever a canary shows" in words
    assert "allow: [changed_training]" in words


def test_a_training_that_would_begin_again_is_tried_only_with_approval(site: Place) -> None:
    site.runs()
    for text in (FASTER_LATER, WIDER):
        assert "is declined, whatever a canary shows" in refused(site, text)
    assert site.canary(WIDER, approve=True)["canary"] == "2"


def test_a_change_whose_rates_may_decide_is_tried(site: Place) -> None:
    (site.directory / "economical.yaml").write_text(ECONOMICAL)
    more = "policy: economical.yaml\n"
    site.runs(BASE + more)
    assert site.apply(CACHED + more, dry_run=True)["outcome"] == "decline"
    assert site.canary(CACHED + more)["canary"] == "2"


# --- What ends with its job


@pytest.mark.parametrize(
    ("verb", "said"),
    [("cancel", "job 1 has ended meanwhile (cancelled: "), ("hold", "job 1 was held meanwhile")],
)
def test_a_canary_ends_with_the_job_that_it_is_for(site: Place, verb: str, said: str) -> None:
    site.runs()
    site.canary(CACHED)
    site.until("running", "2")
    site.ask("POST", f"/jobs/1/{verb}", {})
    trial = site.trial("2")
    assert trial["rate"] is None
    assert trial["why"].startswith(said)
    assert trial["why"].endswith(", so its canary was ended")
    assert site.until("finished", "2")["outcome"] == "cancelled"


def test_a_job_stands_still_for_a_canary_once_its_rate_is_known_until_it_is_cancelled(site: Place) -> None:
    text = BASE.replace("cpus: 1", "cpus: 3")
    site.runs(text)
    words = refused(site, text.replace('"off"', "memory"))
    assert "too few steps to be compared with a canary for which it would have to stand still" in words
    site.writes(1.0)
    assert site.canary(text.replace('"off"', "memory"))["parked"] is True
    site.until("running", "2")
    site.ask("POST", "/jobs/1/cancel", {})
    assert "job 1 has ended meanwhile" in site.trial("2")["why"]
    assert site.until("finished", "2")["outcome"] == "cancelled"


@pytest.mark.parametrize(("by", "is_held"), [("ann", True), (CANARY, False)])
def test_a_job_that_its_canary_holds_is_not_held_for_a_person(by: str, is_held: bool) -> None:  # noqa: FBT001
    """The canary releases it, so that to hold it is refused and not answered with success."""
    assert _is_held(Held(datetime.now(UTC), f"held by {by}", asked=True)) is is_held
