"""Ending many jobs at a time over a real daemon and store: together, or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection

import pytest

from runner.adapters.sqlite import store
from runner.base.errors import Unavailable
from tests.unit.runner.server.api.test_jobs import JOB, ME, Site, error, wait_until

MATRIX = JOB + "resources: {cpus: 4}\nmatrix: {values: {seed: [1, 2, 3, 4]}}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def submitted(site: Site) -> None:
    """Submit a matrix of which one runs and the others wait."""
    site.submit(MATRIX)
    site.until("running")
    for job_id in "234":
        site.until("queued", job_id)


def outcomes(site: Site) -> list[str | None]:
    return [site.job(job_id)["outcome"] for job_id in "1234"]


def told(site: Site) -> list[tuple[str, str]]:
    events = site.ask("GET", "/events?after=0").json()["events"]
    return [(each["job"], each["kind"]) for each in events]


def test_a_matrix_is_cancelled_at_one_moment_and_nothing_waiting_takes_the_place_of_what_ran(
    site: Site,
) -> None:
    submitted(site)
    before = len(told(site))
    found = site.ask("POST", "/cancel", {"sweep": "3"}).json()["jobs"]
    assert [(each["job"]["id"], each["job"]["state"], each["changed"]) for each in found] == [
        ("1", "stopping", True),
        *((job_id, "finished", True) for job_id in "234"),
    ]
    site.until("finished")
    assert outcomes(site) == ["cancelled"] * 4
    assert told(site)[before : before + 4] == [(job_id, "cancel_requested") for job_id in "1234"]
    assert [job for job, kind in told(site) if kind == "placed"] == ["1"]


def test_what_has_ended_of_a_matrix_is_left_alone(site: Site) -> None:
    submitted(site)
    site.ask("POST", "/jobs/3/cancel")
    found = site.ask("POST", "/cancel", {"sweep": "job"}).json()["jobs"]
    assert [each["job"]["id"] for each in found] == ["1", "2", "4"]


def test_the_name_of_a_matrix_stands_for_its_jobs_that_have_not_ended(site: Site) -> None:
    submitted(site)
    site.ask("POST", "/jobs/3/cancel")
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [each["job"]["id"] for each in found] == ["1", "2", "4"]


def test_a_job_that_has_ended_keeps_no_matrix_of_its_name_from_being_cancelled(site: Site) -> None:
    site.submit()
    site.ask("POST", "/jobs/1/cancel")
    site.until("finished")
    site.submit(MATRIX)
    site.until("running", "2")
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [(job_id, True) for job_id in "2345"]


def test_the_jobs_of_others_keep_no_matrix_of_their_name_from_being_cancelled(site: Site) -> None:
    site.submit(uid=ME + 1)
    site.submit(uid=ME + 2)
    site.submit(MATRIX)
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [(job_id, True) for job_id in "3456"]


def test_a_matrix_that_has_ended_keeps_no_older_job_of_its_name_from_being_cancelled(site: Site) -> None:
    site.submit()
    site.until("running")
    site.submit(MATRIX)
    site.ask("POST", "/cancel", {"sweep": "2"})
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("1", True)]


def test_a_job_that_has_ended_does_not_mean_an_older_matrix_of_its_name(site: Site) -> None:
    submitted(site)
    site.submit()
    site.ask("POST", "/jobs/5/cancel")
    found = site.ask("POST", "/cancel", {"jobs": ["job"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("5", False)]
    assert outcomes(site) == [None] * 4


def test_the_name_of_one_of_a_matrix_that_has_ended_means_none_of_the_others(site: Site) -> None:
    submitted(site)
    site.ask("POST", "/jobs/3/cancel")
    found = site.ask("POST", "/cancel", {"jobs": ["job-3"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("3", False)]
    assert outcomes(site) == [None, None, "cancelled", None]


def test_to_cancel_by_the_name_of_a_matrix_that_has_ended_changes_nothing(site: Site) -> None:
    submitted(site)
    site.ask("POST", "/cancel", {"jobs": ["job"]})
    site.until("finished")
    found = site.ask("POST", "/jobs/job/cancel").json()
    assert (found["job"]["id"], found["changed"]) == ("1", False)


def test_jobs_are_named_once_or_twice_and_what_has_ended_is_not_changed(site: Site) -> None:
    submitted(site)
    site.ask("POST", "/jobs/3/cancel")
    found = site.ask("POST", "/cancel", {"jobs": ["job-4", "3", "4"]}).json()["jobs"]
    assert [(each["job"]["id"], each["changed"]) for each in found] == [("4", True), ("3", False)]
    assert outcomes(site) == [None, None, "cancelled", "cancelled"]


def test_one_that_is_unknown_or_somebody_elses_keeps_all_from_being_cancelled(site: Site) -> None:
    submitted(site)
    assert error(site.ask("POST", "/cancel", {"jobs": ["4", "nobody"]}))[:2] == (404, "not_found")
    theirs = site.ask("POST", "/cancel", {"sweep": "1"}, uid=ME + 1)
    assert error(theirs)[:2] == (403, "refused")
    assert outcomes(site) == [None] * 4


def test_what_cannot_be_recorded_of_one_is_recorded_of_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(site)
    write = store._write

    def full(connection: Connection, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        if name == "add_event":  # the states are written before
            raise Unavailable("no space left")
        write(connection, name, rows)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write", full)
        assert error(site.ask("POST", "/cancel", {"sweep": "1"})) == (503, "unavailable", "no space left")
        assert [site.job(job_id)["state"] for job_id in "1234"] == ["running", "queued", "queued", "queued"]
    assert "cancel_requested" not in {kind for _, kind in told(site)}
    site.ask("POST", "/cancel", {"sweep": "1"})
    assert wait_until(lambda: True if outcomes(site) == ["cancelled"] * 4 else None)


@pytest.mark.parametrize("body", [{}, {"jobs": ["1"], "sweep": "1"}, {"jobs": ["1"] * 1001}])
def test_either_jobs_or_a_matrix_and_not_too_many(site: Site, body: dict[str, object]) -> None:
    assert error(site.ask("POST", "/cancel", body))[:2] == (422, "usage")
