"""View of other users' jobs where ``private_jobs`` is set."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.server.api.privacy import HIDDEN, hide_holders
from runner.services.context import Caller
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import Place

OWNER, YOU = 4241, 4242
SECRETS = ("topsecret", "vision-team")
MINE = "name: topsecret\n" + JOB + "labels: {team: vision-team}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    live = place.service.live
    live.value = live.value.model_copy(update={"private_jobs": True})
    assert place.submit(MINE, OWNER).status_code == 201
    place.until("running")
    yield place
    place.service.daemon.stop()


def told(place: Place, path: str, uid: int) -> str:
    place.app.state.overviews._cached = None
    return place.ask("GET", path, uid=uid).text


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs?all=1", "/jobs?last=1", "/overview", "/devices", "/events", "/usage?by=job"]
)
def test_no_name_and_no_label_of_anothers_job_is_told(place: Place, path: str) -> None:
    assert not any(secret in told(place, path, YOU) for secret in SECRETS)


@pytest.mark.parametrize("path", ["/jobs", "/overview", "/events"])
@pytest.mark.parametrize("uid", [OWNER, 0])
def test_the_owner_and_root_see_the_name(place: Place, path: str, uid: int) -> None:
    assert "topsecret" in told(place, path, uid)


def test_a_hidden_job_keeps_its_id_owner_and_state(place: Place) -> None:
    [job] = place.ask("GET", "/jobs", uid=YOU).json()["jobs"]
    assert (job["id"], job["name"], job["state"], job["labels"]) == ("1", HIDDEN, "running", {})
    assert job["owner"]


@pytest.mark.parametrize("path", ["/jobs/1", "/jobs/1/why", "/jobs/1/wait?timeout=0", "/events?job=1"])
def test_by_its_id_anothers_job_is_refused(place: Place, path: str) -> None:
    answer = place.ask("GET", path, uid=YOU)
    assert answer.status_code == 403
    assert "jobs are private here" in answer.text
    assert "topsecret" not in answer.text


@pytest.mark.parametrize("path", ["/jobs/topsecret", "/jobs/nobodys", "/jobs?sweep=topsecret"])
def test_a_name_of_anothers_job_is_as_unknown_as_one_that_nobody_has(place: Place, path: str) -> None:
    answer = place.ask("GET", path, uid=YOU)
    assert answer.status_code == 404
    assert "there is no job of that id or name" in answer.text


TOPIC = "https://ntfy.example.org/ann-3f9c"
TELLS = "name: tells\n" + JOB + f"labels: {{team: vision-team, notify: '{TOPIC}'}}\n"
SEEN_BY_ALL = ("/jobs", "/jobs?all=1&last=1", "/jobs/2", "/jobs/2/wait?timeout=0", "/overview")


@pytest.fixture
def open_place(place: Place) -> Place:
    """A place without private jobs, where another one has an address of its owner."""
    place.service.live.value = place.service.live.value.model_copy(update={"private_jobs": False})
    assert place.submit(TELLS, OWNER).status_code == 201
    return place


@pytest.mark.parametrize("path", SEEN_BY_ALL)
def test_the_address_in_the_label_of_anothers_job_is_told_to_nobody_else(
    open_place: Place, path: str
) -> None:
    others = told(open_place, path, YOU)
    assert "vision-team" in others
    assert TOPIC not in others
    assert all(TOPIC in told(open_place, path, uid) for uid in (OWNER, 0))


@pytest.mark.parametrize("label", ["notify", f"notify={TOPIC}"])
def test_the_address_of_anothers_job_cannot_be_guessed_by_its_label(open_place: Place, label: str) -> None:
    path = f"/jobs?limit=1&label={label}"
    assert open_place.ask("GET", path, uid=YOU).json() == {"jobs": [], "next": None, "unrecorded": []}
    for uid in (OWNER, 0):
        assert [job["id"] for job in open_place.ask("GET", path, uid=uid).json()["jobs"]] == ["2"]


def test_not_even_the_next_page_tells_that_another_has_a_label(place: Place) -> None:
    assert place.ask("GET", "/jobs?limit=1&label=team", uid=YOU).json()["next"] is None


def test_a_label_finds_no_job_of_another(place: Place) -> None:
    assert place.ask("GET", "/jobs?label=team=vision-team", uid=YOU).json()["jobs"] == []
    assert len(place.ask("GET", "/jobs?label=team=vision-team", uid=OWNER).json()["jobs"]) == 1


def test_metrics_name_no_job(place: Place) -> None:
    assert not any(secret.encode() in place.app.state.metrics.text() for secret in SECRETS)


def test_metrics_name_users_to_root_alone(place: Place) -> None:
    live, metrics = place.service.live, place.app.state.metrics
    named = live.value.metrics.model_copy(update={"per_user": True})
    live.value = live.value.model_copy(update={"metrics": named})
    assert live.value.private_jobs
    assert b"runner_user_jobs" not in metrics.text()
    assert b"runner_user_jobs" in metrics.text(trusted=True)


def test_programs_of_others_on_a_device_are_not_named(place: Place) -> None:
    process: dict[str, Any] = {"pid": 7, "uid": OWNER, "program": "python secret.py"}
    devices = [{"uuid": "GPU-a", "jobs": [{"id": "1", "name": "topsecret"}], "processes": [process]}]
    [shown] = hide_holders(place.service, Caller(YOU, YOU), devices)
    assert (shown["jobs"][0]["name"], shown["processes"][0]["program"]) == (HIDDEN, None)
    assert hide_holders(place.service, Caller(OWNER, OWNER), devices) == devices
