"""Schedules over HTTP: whoever hands in a job file with a schedule makes one, and steers it."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.server.api import schedules
from tests.unit.runner.server.api.test_jobs import JOB, ME, Site, error

NIGHTLY = JOB + "name: nightly\nschedule: {cron: 30 2 * * *, timezone: Europe/Berlin}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    schedules.attach(site.app)
    yield site
    site.service.daemon.stop()


def made(site: Site, text: str = NIGHTLY, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = site.submit(text, **more).json()
    assert "error" not in answer, answer
    found: dict[str, Any] = answer["schedule"]
    return found


def test_a_job_file_with_a_schedule_makes_no_job_and_says_when_jobs_will_come(site: Site) -> None:
    found = made(site)
    assert (found["id"], found["name"], found["state"], found["last"]) == (1, "nightly", "active", None)
    assert len(found["next"]) == 3
    assert all(at[10:16] in {"T02:30", "T03:00"} for at in found["next"])
    assert found["next"][0][16:] in {"+01:00", "+02:00"}
    assert site.ask("GET", "/jobs").json()["jobs"] == []


def test_the_word_schedule_alone_makes_none(site: Site) -> None:
    assert site.submit(JOB + "# no schedule\n").json()["job"]["id"] == "1"
    assert site.submit(JOB + "schedule: null\n").json()["job"]["id"] == "2"


def test_a_schedule_is_one_however_its_name_is_spelt(site: Site) -> None:
    escaped = NIGHTLY.replace("schedule:", '"sch\\u0065dule":')
    assert "schedule:" not in escaped
    assert made(site, escaped)["name"] == "nightly"
    assert site.ask("GET", "/jobs").json()["jobs"] == []


def test_a_wrong_file_with_a_schedule_is_refused_with_its_places(site: Site) -> None:
    status, kind, message = error(site.submit(NIGHTLY + "nam: x\n", shown="job.yaml"))
    assert (status, kind) == (422, "usage")
    assert message.startswith("job.yaml:5:1: nam: unknown field")


def test_a_schedule_handed_in_twice_by_one_submission_is_one(site: Site) -> None:
    assert [made(site, token="a" * 32)["id"] for _ in range(2)] == [1, 1]
    status, kind, message = error(site.submit(NIGHTLY, token="b" * 32))
    assert (status, kind) == (403, "refused")
    assert message.startswith("nightly: schedule 1 of yours has this name")
    assert made(site, name="other", token="c" * 32)["name"] == "other"


def test_a_dry_run_makes_no_schedule(site: Site) -> None:
    said = site.submit(NIGHTLY, dry_run=True).json()
    assert said["schedule"]["id"] is None
    assert len(said["schedule"]["next"]) == 3
    assert said["spec"]["workload"]["steps"] == 200
    assert site.ask("GET", "/schedules").json() == {"schedules": []}


def test_everything_about_a_schedule_is_told(site: Site) -> None:
    made(site)
    found = site.ask("GET", "/schedules/nightly").json()
    assert (found["text"], found["occasions"]) == (NIGHTLY, [])
    assert (found["cron"], found["overlap"], found["missed"]) == ("30 2 * * *", "skip", "skip")
    coming = site.ask("GET", "/schedules/1/next?n=7").json()["next"]
    assert len(coming) == 7
    assert coming[:3] == found["next"]


def test_what_became_of_its_times_is_told_on_its_own_clock(site: Site) -> None:
    made(site)
    books, at = SqliteSchedules(site.store), datetime(2030, 7, 1, 0, 30, tzinfo=UTC)
    [row] = books.active()
    site.service.daemon.run_exclusively(
        lambda: books.record_firing(row, at, at, "left_out", "nobody was there")
    )
    came = {"at": "2030-07-01T02:30+02:00", "state": "left_out", "job": None, "text": "nobody was there"}
    assert site.ask("GET", "/schedules/nightly").json()["occasions"] == [came]
    assert site.ask("GET", "/schedules").json()["schedules"][0]["last"] == came


def test_it_rests_goes_on_and_goes(site: Site) -> None:
    made(site)
    for verb, state in (("pause", "paused"), ("resume", "active"), ("remove", "removed")):
        assert site.ask("POST", f"/schedules/nightly/{verb}").json()["schedule"]["state"] == state
    assert site.ask("GET", "/schedules").json()["schedules"] == []
    [gone] = site.ask("GET", "/schedules?all=1").json()["schedules"]
    assert (gone["note"].split()[0], gone["next"]) == ("removed", [])
    assert error(site.ask("POST", "/schedules/1/resume"))[:2] == (403, "refused")


@pytest.mark.parametrize("path", ["9", "weekly", "99999999999999999999"])
def test_one_that_is_not_there_is_said_not_to_be(site: Site, path: str) -> None:
    made(site)
    status, kind, message = error(site.ask("GET", f"/schedules/{path}"))
    assert (status, kind) == (404, "not_found")
    assert message == f"{path}: there is no schedule of that id or name; runner schedule list"


@pytest.mark.parametrize("path", ["/schedules/1/next?n=0", "/schedules/1/next?n=100000", "/schedules/1/stop"])
def test_a_wrong_question_is_refused(site: Site, path: str) -> None:
    made(site)
    method = "POST" if path.endswith("stop") else "GET"
    assert site.ask(method, path).status_code == 422


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as others")
def test_nobody_sees_or_steers_what_others_have_made(site: Site) -> None:
    uid = 4711
    assert site.submit(NIGHTLY, uid).status_code == 201
    assert site.submit(NIGHTLY, uid + 1).status_code == 201  # names are everybody's own
    mine = site.ask("GET", "/schedules", uid=uid).json()["schedules"]
    assert [each["id"] for each in mine] == [1]
    status, kind, message = error(site.ask("POST", "/schedules/2/remove", uid=uid))
    assert (status, kind) == (404, "not_found")
    assert message == "2: there is no schedule of that id or name; runner schedule list"
    assert error(site.ask("POST", "/schedules/nobodys/remove", uid=uid))[:2] == (status, kind)
    assert site.ask("GET", "/schedules/nightly", uid=uid).json()["id"] == 1
    assert len(site.ask("GET", "/schedules", uid=ME).json()["schedules"]) == 2


def test_who_asks_about_a_job_that_a_schedule_has_yet_to_make_is_told(site: Site) -> None:
    made(site)
    status, _, message = error(site.ask("GET", "/jobs/nightly"))
    assert (status, message) == (
        404,
        "nightly: is a schedule, and no job has that name; runner schedule show nightly",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as others")
def test_a_schedule_of_somebody_else_is_not_told_of(site: Site) -> None:
    assert site.submit(NIGHTLY, 4711).status_code == 201
    assert "there is no job" in error(site.ask("GET", "/jobs/nightly", uid=4712))[2]
