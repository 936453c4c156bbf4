"""Changes to jobs over a real daemon and store; programs and what they write are played by the test."""

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.contract import Effective, FileDigest, Manifest, Phase, Status, dump
from runner.base.errors import Unavailable
from runner.core.job.attempt import ExpectedSpeedup
from runner.core.job.events import HoldRequested
from runner.core.job.states import Held
from runner.core.policy.economics import Rate, Work
from runner.files.revision import parse_revision
from runner.server.api import rollouts as changes
from runner.services.job_control import CANARY
from runner.services.rollout.verify import RolloutVerifier, verify
from tests.unit.runner.server.api.test_jobs import ME, Site, error, wait_until

BASE = """\
workload: {kind: graph_forecast, data: synthetic-stocks, steps: 400, eval_every: null, dropout: 0}
profile: {extends: cpu, graph_cache: "off", threads: 1}
resources: {cpus: 1, memory: 1GiB}
retry: {backoff: 0s}
"""
CACHED = BASE.replace('"off"', "memory")
FASTER_LATER = BASE.replace("steps: 400", "steps: 400, learning_rate: 0.5")
WIDER = BASE.replace("dropout: 0", "dropout: 0, hidden: 64")


class Place(Site):
    """A site that answers about changes too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moment = time.time()
        self.verifier: RolloutVerifier = changes.attach(self.app, self.service)

    def change(self, text: str, uid: int = ME, path: str = "/apply", **more: Any) -> httpx.Response:
        encoded = base64.b64encode(text.encode()).decode()
        body = {"path": str(self.directory / "job.yaml"), "text_b64": encoded, **more}
        return self.ask("POST", path, body, uid)

    def apply(self, text: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.change(text, **more).json()
        assert "error" not in answer, answer
        return answer

    def runs(self, text: str = BASE) -> None:
        self.submit(text)
        self.until("running")

    def writes(
        self,
        per_s: float,
        count: int = 60,
        *,
        job_id: str = "1",
        first: int = 0,
        compiles_s: float = 0,
    ) -> None:
        """Let an attempt report so many steps; five at first may compile.

        The last one is always of the same moment: a job and its canary take their steps at the same time,
        however long it took until the canary ran.
        """
        attempt = max(
            int(path.name)
            for path in (self.directory / "jobs" / job_id / "attempts").iterdir()
            if path.is_dir()
        )
        place, now = self.attempt_dir(job_id, attempt), self.moment
        lines = [
            json.dumps(
                {
                    "time": now - (count - 1 - i) / per_s - max(5 - i, 0) * compiles_s,
                    "step": first + i + 1,
                    "loss": 0.5,
                }
            )
            for i in range(count)
        ]
        status = Status(phase=Phase.TRAIN, time=now, step=first + count, total_steps=400)
        effective = Effective(
            device="cpu",
            device_name="cpu",
            precision="fp32",
            threads=1,
            micro_batch=8,
            accumulation=1,
            steps_per_epoch=100,
        )
        (place / "status.json").write_text(dump(status))
        (place / "effective.json").write_text(dump(effective))
        (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")

    def saves(self, step: int, lineage: int = 1, job_id: str = "1") -> Path:
        """Put a valid checkpoint into a lineage."""
        place = self.directory / "jobs" / job_id / "lineages" / str(lineage) / f"step-{step:08d}"
        place.mkdir(parents=True)
        (place / "state.pt").write_bytes(b"state")
        digest = FileDigest(bytes=5, sha256=hashlib.sha256(b"state").hexdigest())
        manifest = Manifest(
            contract_version=1, job_id=job_id, step=step, lineage=lineage, attempt=1, revision=1, created=0.0,
            files={"state.pt": digest},
        )  # fmt: skip
        (place / "manifest.json").write_text(dump(manifest))
        return place

    def attempt(self, number: int) -> dict[str, Any]:
        """Return an attempt once it runs."""
        found: dict[str, Any] = self.until("running", attempt=number)["attempts"][-1]
        return found

    def spec(self, attempt: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.attempt_dir("1", attempt) / "spec.json").read_text())
        return found

    def revisions(self) -> list[tuple[int, object, bool]]:
        known = self.ask("GET", "/jobs/1/revisions").json()["revisions"]
        return [(each["number"], each["lineage"], each["present"]) for each in known]

    def canary(self, text: str, steps: int = 40, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.change(text, path="/canaries", steps=steps, **more).json()
        return answer

    def trial(self, canary: str) -> dict[str, Any]:
        """Return a trial once it is over."""

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.ask("GET", f"/jobs/1/canaries/{canary}").json()
            return found if found["finished"] else None

        return wait_until(look)

    def measured(self, text: str, per_s: float) -> str:
        """Return the id of a canary of the running job that has shown a rate, in a time in which that one
        has taken steps, too: one a second.
        """
        began = self.canary(text)
        self.until("running", began["canary"])
        self.writes(per_s, max(60, round(12 * per_s)), job_id=began["canary"], first=40)
        return str(self.trial(began["canary"])["canary"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    site = Place(tmp_path)
    yield site
    site.verifier.stop()
    site.service.daemon.stop()


# --- Without a canary


def test_a_dry_run_shows_what_differs_and_changes_nothing(site: Place) -> None:
    site.runs()
    answer = site.apply(CACHED, dry_run=True)
    assert [(each["field"], each["before"], each["after"], each["class"]) for each in answer["changes"]] == [
        ("profile.graph_cache", "off", "memory", "B")
    ]
    assert (answer["class"], answer["same_bits"], answer["revision"]) == ("B", True, None)
    assert site.revisions() == [(1, 1, True)]


def test_a_file_that_says_the_same_is_no_change(site: Place) -> None:
    site.runs()
    answer = site.apply(BASE.replace("cpus: 1,", "cpus: 1.0,") + "# words\n")
    assert (answer["changes"], answer["revision"], answer["why"]) == ([], None, "nothing differs")
    assert len(site.revisions()) == 1


def test_a_change_of_the_books_is_stored_for_the_next_start_and_what_runs_goes_on(site: Place) -> None:
    site.runs()
    answer = site.apply(BASE + "priority: 60\nlabels: {team: a}\n")
    assert (answer["class"], answer["outcome"], answer["revision"]) == ("A", "store", 2)
    job = site.job()
    assert (job["state"], job["attempt"], job["priority"], job["labels"]) == ("running", 1, 60, {"team": "a"})
    assert site.service.daemon.tracked_jobs["1"].row.priority == 60
    assert site.revisions() == [(1, 1, False), (2, 1, True)]
    [at, _] = [each["at"] for each in site.ask("GET", "/jobs/1/revisions").json()["revisions"]]
    assert at.endswith("Z")
    site.end(1)
    site.attempt(2)
    assert [site.spec(number)["revision"] for number in (1, 2)] == [1, 2]


def test_another_trajectory_is_declined_unless_the_job_file_allows_it(site: Place) -> None:
    site.runs()
    site.saves(40)
    declined = site.apply(FASTER_LATER)
    assert (declined["class"], declined["outcome"], declined["revision"]) == ("C", "decline", None)
    assert "allow: [changed_training]" in declined["why"]
    assert len(site.revisions()) == 1
    taken = site.apply(FASTER_LATER + "allow: [changed_training]\n")
    assert (taken["outcome"], taken["verdict"]["rule"], taken["revision"]) == ("resume", "other-training", 2)
    assert site.attempt(2)["lineage"] == 1
    assert site.spec(2)["workload"]["learning_rate"] == 0.5
    decisions = site.ask("GET", "/jobs/1/decisions").json()["decisions"]
    changes = [each["verdict"]["do"] for each in decisions if each["moment"] == "change"]
    assert changes == ["keep", "resume"]  # what was declined is remembered too


def test_what_no_checkpoint_fits_needs_approval_and_a_rollback_leads_back_to_the_old_lineage(
    site: Place,
) -> None:
    site.runs()
    site.saves(40)
    declined = site.apply(WIDER)
    assert (declined["class"], declined["outcome"]) == ("E", "decline")
    assert "--approve" in declined["why"]
    taken = site.apply(WIDER, approve=True)
    assert (taken["outcome"], taken["revision"]) == ("restart", 2)
    assert site.attempt(2)["lineage"] == 2
    back = site.ask("POST", "/jobs/1/rollback", {}).json()
    assert (back["to"], back["revision"]) == (1, 3)
    assert back["follows"] == "begins again from the checkpoint of step 40 of lineage 1"
    assert site.attempt(3)["lineage"] == 1
    assert site.spec(3)["workload"]["hidden"] == 32
    assert site.revisions() == [(1, 1, False), (2, 2, False), (3, 1, True)]
    again = site.apply(WIDER, approve=True)
    assert again["revision"] == 4
    assert site.attempt(4)["lineage"] == 3


def test_there_is_no_way_back_from_the_first_revision_or_to_one_that_never_was(site: Place) -> None:
    site.runs()
    for body in ({}, {"revision": 1}, {"revision": 7}):
        status, _, words = error(site.ask("POST", "/jobs/1/rollback", body))
        assert (status, words) == (403, "job 1: has one revision, and none to go back to")
    site.apply(BASE + "priority: 60\n")
    for number, said in ((2, "is at revision 2 already; there are 1"), (7, "has no revision 7; it can go")):
        assert said in error(site.ask("POST", "/jobs/1/rollback", {"revision": number}))[2]


def test_a_rollback_to_what_the_job_is_already_stops_nothing(site: Place) -> None:
    site.runs()
    site.apply(BASE + "priority: 60\n")
    site.apply(BASE)
    back = site.ask("POST", "/jobs/1/rollback", {"revision": 1}).json()
    assert back == {"to": 1, "revision": None, "follows": "nothing differs"}
    assert (site.job()["state"], site.job()["attempt"], len(site.revisions())) == ("running", 1, 3)


def test_a_way_back_from_what_never_took_effect_stops_nothing(site: Place) -> None:
    site.runs()
    assert site.apply(BASE + "priority: 60\n")["outcome"] == "store"
    back = site.ask("POST", "/jobs/1/rollback", {}).json()
    follows = "the running attempt goes on: nothing that it uses differs"
    assert back == {"to": 1, "revision": 3, "follows": follows}
    job = site.job()
    assert (job["state"], job["attempt"], job["priority"]) == ("running", 1, 50)
    assert site.revisions() == [(1, 1, False), (2, 1, False), (3, 1, True)]


def test_a_job_at_rest_takes_a_change_and_rests(site: Place) -> None:
    site.runs()
    site.complete()
    site.until("finished")
    answer = site.apply(CACHED)
    assert (answer["outcome"], answer["revision"]) == ("store", 2)
    assert "nothing has to pay" in answer["arithmetic"][-1]
    assert "econ.resume_gain" not in answer["facts"]
    assert site.job()["state"] == "finished"
    back = site.ask("POST", "/jobs/1/rollback", {"revision": 1}).json()
    assert back["follows"] == "with the next attempt"


def test_a_file_with_a_schedule_is_no_change_of_a_job(site: Place) -> None:
    site.runs()
    status, kind, words = error(site.change(CACHED + "schedule: {cron: '@daily'}\n"))
    assert (status, kind) == (422, "usage")
    assert words.endswith(
        "schedule: belongs to no change of one job; leave it out here, or make it with runner submit"
    )
    assert len(site.ask("GET", "/jobs/1/revisions").json()["revisions"]) == 1


def test_a_change_is_held_to_the_size_of_its_users_job_files(
    site: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.runs()
    monkeypatch.setitem(site.service.settings.__dict__, "job_file_bytes_per_user", 20_000)
    large = f"{CACHED}environment: {{A: {'x' * 19_000}}}\n"
    status, kind, words = error(site.change(large, job="1", at_next_start=True))
    assert (status, kind) == (403, "refused")
    assert words.startswith("job 1: user ")
    assert "of job files, and has " in words


def test_only_the_owner_changes_a_job(site: Place) -> None:
    site.runs()
    other = ME + 1
    status, _, words = error(site.change(CACHED, uid=other)) if os.geteuid() == 0 else (403, "", "belongs to")
    assert status == 403
    assert "belongs to" in words


def test_a_job_is_named_by_its_id_where_the_file_is_called_something_else(site: Place) -> None:
    site.runs()
    answer = site.apply("name: other\n" + CACHED, job="1", dry_run=True)
    assert [each["field"] for each in answer["changes"]] == ["profile.graph_cache"]
    assert site.change("name: other\n" + CACHED).status_code == 404


# --- With one


def test_a_canary_is_a_job_of_its_own_that_is_taken_away_when_it_has_been_measured(site: Place) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    began = site.canary(CACHED)
    assert (began["canary"], began["parked"]) == ("2", False)
    canary = site.until("running", "2")
    assert canary["name"] == "job-canary"
    assert canary["labels"] == {"canary-of": "1"}
    copy = site.directory / "jobs/2/lineages/1/step-00000040"
    assert (copy / "state.pt").read_bytes() == b"state"
    spec = json.loads((site.attempt_dir("2") / "spec.json").read_text())
    assert (spec["profile"]["graph_cache"], spec["workload"]["log_every"]) == ("memory", 1)
    site.writes(10.0, 120, job_id="2", first=40)
    assert site.trial("2")["rate"]["mean"] == pytest.approx(10.0)
    assert site.job("2")["outcome"] == "cancelled"
    assert site.job()["state"] == "running"
    assert [path.name for path in (site.directory / "jobs/1/lineages/1").iterdir()] == ["step-00000040"]
    assert not list((site.directory / "jobs").glob(".canary-*"))


def test_a_canary_evaluates_where_its_job_does_and_the_rest_of_an_evaluation_is_work(site: Place) -> None:
    text = BASE.replace("eval_every: null", "eval_every: 100")
    cached = text.replace('"off"', "memory")
    site.runs(text)
    site.saves(40)
    site.writes(1.0)
    canary = site.measured(cached, 10.0)
    spec = json.loads((site.attempt_dir(canary) / "spec.json").read_text())
    assert (spec["workload"]["eval_every"], spec["checkpoint"]["before_eval"]) == (20, False)
    evaluating = Status(
        phase=Phase.EVAL, time=time.time(), step=60, total_steps=400, eval_s=900, eval_left_s=500
    )
    (site.attempt_dir() / "status.json").write_text(dump(evaluating))
    lines = site.apply(cached, canary=canary, dry_run=True)["arithmetic"]
    assert any("4 evaluations * 900.0 s + " in line and "s of the one that runs" in line for line in lines)


def test_a_change_that_was_measured_to_pay_is_resumed_with_its_arithmetic(site: Place) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    canary = site.measured(CACHED, 10.0)
    answer = site.apply(CACHED, canary=canary)
    assert (answer["outcome"], answer["verdict"]["rule"]) == ("resume", "faster")
    assert answer["facts"]["econ.best"] == "resume"
    assert answer["facts"]["progress.epoch_fraction"] == 0.6
    assert any(line.startswith("keep       340 steps / 1 = 34") for line in answer["arithmetic"])
    assert site.attempt(2)["lineage"] == 1
    promise = site.service.queries.find("1").job.promise
    assert promise is not None
    assert promise.back_to == 1
    assert promise.rate == pytest.approx(1.0)


def test_late_in_a_job_the_same_change_is_declined(site: Place) -> None:
    on_the_way = "checkpoint: {every: null, every_steps: 100, on_stop: false}\n"
    site.runs(BASE + on_the_way)
    site.saves(40)
    site.writes(1.0, first=330)
    cached = CACHED + on_the_way
    answer = site.apply(cached, canary=site.measured(cached, 2.0))
    assert (answer["outcome"], answer["revision"]) == ("keep", None)
    assert site.job()["attempt"] == 1
    assert len(site.revisions()) == 1


def test_a_change_that_was_measured_as_slower_is_declined(site: Place) -> None:
    site.runs()
    site.saves(40)
    site.writes(5.0)
    canary = site.measured(CACHED, 2.0)
    answer = site.apply(CACHED, canary=canary)
    assert (answer["outcome"], answer["revision"]) == ("keep", None)
    assert "--at-next-start stores it" in answer["why"]
    site.end(1)
    site.attempt(2)
    assert site.spec(2)["profile"]["graph_cache"] == "off"


def test_a_job_that_stood_still_for_a_canary_of_a_slower_change_goes_on_with_its_old_file(
    site: Place,
) -> None:
    text = BASE.replace("cpus: 1", "cpus: 3")
    cached = text.replace('"off"', "memory")
    site.runs(text)
    site.saves(40)
    site.writes(5.0)
    assert site.canary(cached)["parked"] is True
    site.until("running", "2")
    site.writes(2.0, job_id="2", first=40)
    site.trial("2")
    answer = site.apply(cached, canary="2")
    assert (answer["facts"]["econ.best"], answer["outcome"], answer["revision"]) == ("keep", "keep", None)
    site.attempt(2)
    assert site.spec(2)["profile"]["graph_cache"] == "off"
    assert site.revisions() == [(1, 1, True)]


def test_the_steps_with_which_a_job_began_make_no_slower_change_seem_faster(site: Place) -> None:
    text = BASE.replace("cpus: 1", "cpus: 3")
    cached = text.replace('"off"', "memory")
    site.runs(text)
    site.saves(40)
    site.writes(5.0, compiles_s=8.0)
    assert site.canary(cached)["parked"] is True
    site.until("running", "2")
    site.writes(4.0, job_id="2", first=40)
    site.trial("2")
    answer = site.apply(cached, canary="2")
    assert (answer["facts"]["econ.best"], answer["outcome"], answer["revision"]) == ("keep", "keep", None)


def test_a_change_is_stored_for_the_next_start_only_on_request(site: Place) -> None:
    site.runs()
    assert (site.apply(CACHED)["outcome"], len(site.revisions())) == ("keep", 1)
    answer = site.apply(CACHED, at_next_start=True)
    assert (answer["outcome"], answer["revision"]) == ("store", 2)
    assert answer["why"] == "stored as asked; the change takes effect with the next start"
    assert site.job()["attempt"] == 1
    site.end(1)
    site.attempt(2)
    assert site.spec(2)["profile"]["graph_cache"] == "memory"


def test_what_fits_no_checkpoint_is_not_stored_for_a_start_that_would_find_one(site: Place) -> None:
    site.runs()
    site.saves(40)
    answer = site.apply(WIDER, at_next_start=True, approve=True)
    assert (answer["outcome"], answer["revision"]) == ("decline", None)
    assert "no checkpoint would fit at the next start: leave --at-next-start out" in answer["why"]


def test_what_its_owner_allowed_is_held_to_no_speed(site: Place) -> None:
    larger = BASE.replace("steps: 400", "steps: 400, batch_size: 16") + "allow: [changed_training]\n"
    site.runs()
    site.saves(40)
    site.writes(1.0)
    assert site.apply(larger, canary=site.measured(larger, 0.52))["outcome"] == "resume"
    site.attempt(2)
    site.writes(0.5, first=40)
    site.verifier.verify_all()
    job = site.service.queries.find("1").job
    assert (job.revision, job.promise) == (2, None)


def test_a_change_that_is_taken_back_leaves_what_a_person_has_set_since(site: Place) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    site.apply(CACHED, canary=site.measured(CACHED, 10.0))
    site.attempt(2)
    site.ask("POST", "/jobs/1/limits", {"priority": 90, "time_limit_s": 7200})
    site.ask("POST", "/jobs/1/restart", {})
    site.attempt(3)
    site.writes(0.2, first=40)
    site.verifier.verify_all()
    job = parse_revision(site.service.queries.find("1").revision).job
    assert site.service.queries.find("1").job.revision == 4
    assert (job.priority, job.resources.time_limit, job.profile.changes["graph_cache"]) == (
        90,
        timedelta(hours=2),
        "off",
    )


@pytest.mark.parametrize("parked", [True, False])
def test_only_a_job_that_its_canary_holds_is_released_for_its_end(site: Place, parked: bool) -> None:  # noqa: FBT001
    site.runs()
    held = HoldRequested(site.service.clock.now(), CANARY if parked else "ann")
    daemon, find = site.service.daemon, site.service.queries.current
    daemon.run_exclusively(lambda: daemon.apply_event(find("1"), held))
    site.until("held")
    site.verifier.rollouts.canaries._measurer.release("1")
    assert isinstance(site.service.queries.find("1").job.state, Held) is not parked


@pytest.mark.parametrize("count", [21, 24, 60])
def test_steps_that_compile_take_no_change_back(site: Place, count: int) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    site.apply(CACHED, canary=site.measured(CACHED, 10.0))
    site.attempt(2)
    site.writes(10.0, count, first=40, compiles_s=8.0)
    site.verifier.verify_all()
    assert site.service.queries.find("1").job.revision == 2
    told = [each["text"] for each in site.ask("GET", "/events?job=1").json()["events"]]
    assert any("keeps what it promised" in text for text in told) is (count == 60)


@pytest.mark.parametrize(("per_s", "revision"), [(0.9, 2), (0.2, 3)])
def test_what_is_expected_of_a_change_is_checked(site: Place, per_s: float, revision: int) -> None:
    larger = BASE.replace("steps: 400", "steps: 400, batch_size: 16") + "allow: [changed_training]\n"
    site.runs()
    site.saves(40)
    site.writes(1.0)
    assert site.apply(larger, expect=1.6)["outcome"] == "resume"
    site.attempt(2)
    site.writes(per_s, first=40)  # a step is twice the work: 0.9 of them are 1.8 of the old ones
    site.verifier.verify_all()
    assert site.service.queries.find("1").job.revision == revision


@pytest.mark.parametrize("place", ["note", "roll back"])
def test_a_verification_that_could_not_be_written_is_done_in_the_next_round(
    site: Place, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    site.apply(CACHED, canary=site.measured(CACHED, 10.0))
    site.attempt(2)
    site.writes(0.2, first=40)

    def full(*_: object, **__: object) -> None:
        raise Unavailable("store.db: database or disk is full")

    with monkeypatch.context() as during:
        if place == "note":
            during.setattr(site.service.store, "note", full)
        else:
            during.setattr(type(site.verifier.rollouts), "roll_back_to", full)
        site.verifier.verify_all()
    assert site.service.queries.find("1").job.revision == 2
    site.verifier.verify_all()
    assert site.service.queries.find("1").job.revision == 3
    events = site.ask("GET", "/events?job=1").json()["events"]
    assert [each["kind"] for each in events].count("change_delivered") == 1


def test_where_nothing_is_saved_and_nothing_will_be_a_restart_is_what_pays(site: Place) -> None:
    text = BASE + "checkpoint: {every: null, every_steps: 100, on_stop: false}\n"
    site.runs(text)
    site.writes(1.0)
    answer = site.apply(
        text.replace('"off"', "memory"), canary=site.measured(text.replace('"off"', "memory"), 10.0)
    )
    assert answer["facts"]["checkpoint.on_demand"] is False
    assert answer["outcome"] == "restart"
    assert site.attempt(2)["lineage"] == 2


def test_a_job_makes_room_for_its_canary_and_goes_on_afterwards(site: Place) -> None:
    text = BASE.replace("cpus: 1", "cpus: 3")
    cached = text.replace('"off"', "memory")
    site.runs(text)
    site.saves(40)
    site.writes(1.0)
    began = site.canary(cached)
    assert began["parked"] is True
    site.until("running", "2")
    assert site.job()["state"] == "held"
    site.writes(10.0, 120, job_id="2", first=40)
    site.trial("2")
    answer = site.apply(cached, canary="2")
    assert answer["outcome"] == "resume"
    assert any("to start again, with the change or without" in line for line in answer["arithmetic"])
    site.attempt(2)
    assert site.spec(2)["profile"]["graph_cache"] == "memory"


def test_a_job_that_would_lose_work_makes_no_room(site: Place) -> None:
    site.runs(BASE.replace("cpus: 1", "cpus: 3") + "checkpoint: {on_stop: false}\n")
    status, _, words = error(site.change(CACHED.replace("cpus: 1", "cpus: 3"), path="/canaries", steps=40))
    assert status == 403
    assert "waits for 3 cpus and 1 GiB of memory: 3 cpus wanted and 1 free" in words
    assert site.job()["state"] == "running"


def test_a_checkpoint_that_leads_elsewhere_is_not_copied(site: Place) -> None:
    site.runs()
    elsewhere = site.saves(40, lineage=9)
    here = site.directory / "jobs/1/lineages/1"
    here.mkdir(exist_ok=True)
    (here / elsewhere.name).symlink_to(elsewhere)
    began = site.canary(CACHED)
    copied = site.directory / "jobs" / began["canary"] / "lineages"
    assert not list(copied.glob("*/step-*"))
    assert not list((site.directory / "jobs").glob(".canary-*"))


def test_a_canary_that_fails_says_why_and_leaves_the_change_unmeasured(site: Place) -> None:
    site.runs()
    began = site.canary(CACHED)
    site.until("running", "2")
    site.end(1, "2")
    trial = site.trial(began["canary"])
    assert trial["rate"] is None
    assert "the canary ended after 0 steps" in trial["why"]
    assert site.apply(CACHED, canary="2", dry_run=True)["econ"]["rate_new"] is None


def test_what_an_earlier_daemon_has_begun_to_try_is_cancelled(site: Place) -> None:
    site.runs()
    site.canary(CACHED)
    site.until("running", "2")
    site.verifier.rollouts.canaries.cancel_orphans()
    assert site.until("finished", "2")["outcome"] == "cancelled"
    assert site.job()["state"] == "running"


@pytest.mark.parametrize(("steps", "words"), [(3, "at least 25 steps"), (0, "at least 25 steps")])
def test_too_few_steps_are_no_trial(site: Place, steps: int, words: str) -> None:
    site.runs()
    assert words in error(site.change(CACHED, path="/canaries", steps=steps))[2]


def test_only_what_runs_is_tried_out(site: Place) -> None:
    site.runs()
    site.complete()
    site.until("finished")
    assert (
        "is finished; a canary is for a job that runs"
        in error(site.change(CACHED, path="/canaries", steps=40))[2]
    )


def test_a_canary_that_nobody_knows_measures_nothing(site: Place) -> None:
    site.runs()
    status, kind, words = error(site.change(CACHED, canary="9"))
    assert (status, kind) == (422, "usage")
    assert words.startswith("--measured: there is no canary 9 of job 1")
    assert "has no canary 9" in error(site.ask("GET", "/jobs/1/canaries/9"))[2]


# --- Holding a change to its promise


PROMISE = ExpectedSpeedup(back_to=1, rate=1.0, faster=4.0)


@pytest.mark.parametrize(
    ("rate", "saved", "back", "words"),
    [
        (4.1, 0, False, "keeps what it promised"),
        (2.6, 0, False, "keeps what it promised"),
        (0.5, 200, True, "brings too little"),
        (2.0, 200, False, "going back would take 3m20s, and going on 1m40s"),
    ],
)
def test_a_change_is_taken_back_only_if_it_disappoints_and_going_back_ends_sooner(
    rate: float,
    saved: int,
    back: bool,  # noqa: FBT001
    words: str,
) -> None:
    found = verify(PROMISE, Rate(rate, 0.0, 30), Work(400, 200, saved))
    assert found.roll_back is back
    assert words in found.text


def test_going_back_costs_a_stop_and_a_start_and_a_doubtful_rate_takes_nothing_back() -> None:
    dear = ExpectedSpeedup(back_to=1, rate=1.0, faster=4.0, back_s=250.0)
    assert verify(dear, Rate(0.5, 0.0, 30), Work(400, 200, 200)).roll_back is False
    assert verify(PROMISE, Rate(0.5, 0.0, 30), Work(400, 200, 200)).roll_back is True
    assert verify(PROMISE, Rate(0.8, 2.0, 25), Work(400, 200, 200)).roll_back is False


@pytest.mark.parametrize(("per_s", "revision"), [(12.0, 2), (0.2, 3)])
def test_a_change_that_does_not_deliver_is_taken_back_once(site: Place, per_s: float, revision: int) -> None:
    site.runs()
    site.saves(40)
    site.writes(1.0)
    site.apply(CACHED, canary=site.measured(CACHED, 10.0))
    site.verifier.verify_all()  # nothing is measured yet
    site.attempt(2)
    site.verifier.verify_all()
    assert site.service.queries.find("1").job.revision == 2
    site.writes(per_s, first=40)
    site.verifier.verify_all()
    site.verifier.verify_all()
    job = site.service.queries.find("1").job
    assert job.revision == revision
    told = [each["text"] for each in site.ask("GET", "/events?job=1").json()["events"]]
    assert sum("times as fast" in text and "of" in text for text in told) >= 1
    if revision == 3:
        site.attempt(3)
        assert site.spec(3)["profile"]["graph_cache"] == "off"
        assert site.service.queries.find("1").job.promise is None
