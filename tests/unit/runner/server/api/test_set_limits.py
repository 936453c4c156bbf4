"""``runner set`` over a real daemon and store: what waits and what runs."""

import base64
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Refused
from runner.core.job.revision_text import SharedText
from runner.core.job.states import Starting
from runner.core.policy.adjustments import Overrides
from runner.files.revision import parse_revision
from runner.services.context import Caller
from runner.services.rollout.limits import NewLimits, SetLimits
from tests.unit.runner.server.api.test_jobs import ME, error
from tests.unit.runner.server.api.test_rollouts import Place

JOB = "workload: {kind: program, command: [./train], code: code}\nresources: {cpus: 1, memory: 1GiB}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "code").mkdir()
    site = Place(tmp_path)
    yield site
    site.service.daemon.stop()


def asked(site: Place, **limits: object) -> dict[str, Any]:
    answer: dict[str, Any] = site.ask("POST", "/jobs/1/limits", limits).json()
    assert "error" not in answer, answer
    return answer


def test_a_job_that_waits_has_other_limits_and_the_same_code(site: Place) -> None:
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\n")
    site.until("queued")
    before = parse_revision(site.service.queries.find("1").revision)
    (site.directory / "code").rmdir()  # neither the file nor the code is looked at again
    answer = asked(
        site, priority=90, memory=2 * 1024**3, time_limit_s=7200, not_before="2098-01-01T00:00:00Z"
    )
    told = {
        each["field"]: (each["before"], each["after"], each["at_next_start"]) for each in answer["changes"]
    }
    assert told["resources.memory"] == ("1GiB", "2GiB", False)
    assert told["priority"] == ("50", "90", False)
    assert told["resources.time_limit"][:2] == ("-", "2h")
    row = site.service.queries.find("1")
    after = parse_revision(row.revision)
    assert (row.priority, row.job.time_limit is not None, row.job.state.kind) == (90, True, "queued")
    assert (after.code, after.lock, after.job.workload) == (before.code, before.lock, before.job.workload)
    assert asked(site, time_limit_s=0)["changes"][0]["after"] == "-"
    assert asked(site, priority=90)["changes"] == []
    assert site.service.queries.find("1").job.revision == 3


def test_a_change_is_kept_once_and_reads_no_text_of_an_earlier_one(site: Place) -> None:
    """A job file may have a megabyte, and a job thousands of revisions."""
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\nlabels: {marked: onlyhere}\n")
    site.until("queued")
    for priority in (1, 2, 3):
        asked(site, priority=priority)
    read, shared_text = set[int](), SqliteStore._shared_text

    def noted(self: SqliteStore, text_id: int) -> SharedText:
        read.add(text_id)
        return shared_text(self, text_id)

    with patch.object(SqliteStore, "_shared_text", noted):
        asked(site, priority=4)
    assert len(read) <= 2  # what it is, and what it becomes
    with sqlite3.connect(site.directory / "store.db") as store:
        bodies = [body for (body,) in store.execute("SELECT body FROM events")]
        texts = [text for (text,) in store.execute("SELECT text FROM texts")]
    assert not any("onlyhere" in body for body in bodies)
    assert sum("onlyhere" in text for text in texts) == 5


def test_a_job_that_runs_goes_on_with_its_adjustments_and_has_the_rest_at_its_next_start(site: Place) -> None:
    site.submit(JOB)
    site.until("running")
    row = site.service.queries.current("1")
    answer = asked(site, priority=7, memory=2 * 1024**3, time_limit_s=3600, priority_class="idle")
    later = {each["field"]: each["at_next_start"] for each in answer["changes"]}
    assert later == {
        "priority": False,
        "resources.memory": True,
        "resources.time_limit": False,
        "queue.priority_class": True,
    }
    now = site.service.queries.current("1")
    assert (now.job.attempts, now.job.state.kind, now.priority) == (1, "running", 7)
    assert getattr(now.job.state, "deadline", None) is not None
    assert now.job.turned == row.job.turned == Overrides()
    assert site.job()["next_start"] == [
        "queue.priority_class normal → idle",
        "resources.memory 1GiB → 2GiB",
    ]


def test_a_job_that_has_ended_has_other_limits_at_its_next_start(site: Place) -> None:
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\n")
    site.until("queued")
    site.ask("POST", "/jobs/1/cancel")
    site.until("finished")
    before = site.service.queries.find("1").job
    later = {
        each["field"]: each["at_next_start"]
        for each in asked(site, priority=90, time_limit_s=3600, memory=2 * 1024**3)["changes"]
    }
    assert later == {"priority": True, "resources.memory": True, "resources.time_limit": True}
    row = site.service.queries.find("1")
    assert (row.job.state, row.job.attempts, row.priority) == (before.state, before.attempts, 90)
    site.ask("POST", "/jobs/1/restart", {"from": "checkpoint"})
    site.until("queued")
    begun = site.service.queries.find("1")
    assert (begun.job.time_limit, begun.job.revision) == (timedelta(hours=1), 2)
    assert parse_revision(begun.revision).job.resources.memory == 2 * 1024**3


@pytest.mark.parametrize(
    ("limits", "status", "fact"),
    [
        ({"memory": 1}, 422, "memory: must be from 64MiB"),
        ({"memory": 2**45}, 403, "resources.memory: asks for 32 TiB"),
        ({"cpus": 1000}, 403, "resources.cpus: asks for 1000"),
        ({"priority_class": "nobodys"}, 403, "nobodys"),
        ({"not_before": "tomorrow"}, 422, "not_before: must be a time"),
    ],
)
def test_what_a_submission_would_be_refused_for_changes_nothing(
    site: Place, limits: dict[str, Any], status: int, fact: str
) -> None:
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\n")
    site.until("queued")
    found = error(site.ask("POST", "/jobs/1/limits", limits))
    assert (found[0], fact in found[2]) == (status, True), found
    assert site.service.queries.find("1").job.revision == 1
    assert error(site.ask("POST", "/jobs/1/limits", {"priority": 1}, uid=ME + 1))[0] == 403


def test_of_a_job_that_starts_what_is_wrong_is_told_first(site: Place) -> None:
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\n")
    site.until("queued")
    row, limits = site.service.queries.find("1"), SetLimits(site.service)
    none: Any = None
    starts = replace(row, job=replace(row.job, state=Starting(row.job.state.since, "img", none, none)))
    with patch.object(type(site.service.queries), "readable_living", lambda *_: starts):
        with pytest.raises(Refused, match="nobodys"):
            limits.set(Caller(ME, ME), "1", NewLimits(priority_class="nobodys"))
        with pytest.raises(Refused, match=r"is starting; try again in a moment"):
            limits.set(Caller(ME, ME), "1", NewLimits(priority=1))


def test_the_file_alone_is_applied_and_the_code_stays(site: Place) -> None:
    site.submit(JOB + "queue: {not_before: 2099-01-01T00:00:00Z}\n")
    site.until("queued")
    before = parse_revision(site.service.queries.find("1").revision)
    text = JOB + "labels: {a: b}\nqueue: {not_before: 2099-01-01T00:00:00Z}\n"
    assert [each["field"] for each in site.apply(text, file_only=True, job="1")["changes"]] == ["labels.a"]
    after = parse_revision(site.service.queries.find("1").revision)
    assert (after.job.labels, after.code) == ({"a": "b"}, before.code)


@pytest.mark.parametrize("job", ["1", None])
def test_the_paths_of_the_file_alone_mean_what_they_meant_wherever_it_lies(
    site: Place, tmp_path_factory: pytest.TempPathFactory, job: str | None
) -> None:
    waits = "queue: {not_before: 2099-01-01T00:00:00Z}\nmounts: [{source: code, target: /data/in}]\n"
    site.submit(JOB + waits)
    site.until("queued")
    before = parse_revision(site.service.queries.find("1").revision)
    other = tmp_path_factory.mktemp("elsewhere")
    if job is None:  # the job is found by the name in the file, which is read first
        (other / "code").mkdir()
    path = str(other / "job.yaml")
    text = JOB + waits + "labels: {a: b}\n"
    text_b64 = base64.b64encode(text.encode()).decode()
    body = {"path": path, "text_b64": text_b64, "file_only": True, "job": job}
    answer = site.ask("POST", "/apply", body).json()
    assert [each["field"] for each in answer["changes"]] == ["labels.a"]
    after = parse_revision(site.service.queries.find("1").revision)
    assert (after.path, after.code) == (before.path, before.code)
    assert [*after.resolved_mounts()] == [*before.resolved_mounts()]
