"""A uid that is given to another person is another person."""

import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.server.api import schedules
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import Place

WHO = 4241
NIGHTLY = JOB + "name: nightly\nschedule: {cron: 30 2 * * *, timezone: Europe/Berlin}\n"
Rename = Callable[[str], None]


@pytest.fixture
def rename(monkeypatch: pytest.MonkeyPatch) -> Rename:
    """Give the uid to the account of a name."""
    known = pwd.getpwuid

    def called(name: str) -> None:
        account = pwd.struct_passwd((name, "x", WHO, WHO, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: account if uid == WHO else known(uid))

    called("ada")
    return called


@pytest.fixture
def place(tmp_path: Path, rename: Rename) -> Iterator[Place]:
    del rename
    place = Place(tmp_path)
    schedules.attach(place.app)
    assert place.submit(JOB, WHO).status_code == 201
    place.until("running")
    yield place
    place.service.daemon.stop()


REQUESTS = (
    ("GET", "/jobs/1/log"),
    ("GET", "/jobs/1/decisions"),
    ("POST", "/jobs/1/cancel"),
    ("POST", "/jobs/1/hold"),
    ("GET", "/jobs/1/files?path=x"),
)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_the_new_person_is_not_the_owner_of_the_old_ones_jobs(
    place: Place, rename: Rename, method: str, path: str
) -> None:
    rename("bob")
    answer = place.ask(method, path, uid=WHO)
    assert answer.status_code == 403
    assert "belongs to ada, who had uid 4241 before; only they and root may do that" in answer.text
    assert place.ask("GET", "/jobs/1", uid=WHO).json()["revision"] is None
    rename("ada")
    assert place.ask("GET", "/jobs/1", uid=WHO).json()["revision"] is not None


def test_the_new_person_sees_and_removes_no_schedule_of_the_old_one(place: Place, rename: Rename) -> None:
    assert place.submit(NIGHTLY, WHO).status_code == 201
    assert len(place.ask("GET", "/schedules", uid=WHO).json()["schedules"]) == 1
    rename("bob")
    assert place.ask("GET", "/schedules", uid=WHO).json()["schedules"] == []
    assert place.ask("GET", "/schedules/nightly", uid=WHO).status_code == 404


def test_the_new_person_may_have_a_schedule_of_the_same_name(place: Place, rename: Rename) -> None:
    for number, name in enumerate(("ada", "bob"), 1):
        rename(name)
        assert place.submit(NIGHTLY, WHO).status_code == 201
        assert place.ask("GET", "/schedules/nightly", uid=WHO).json()["id"] == number
    rename("ada")
    assert place.ask("GET", "/schedules/nightly", uid=WHO).json()["id"] == 1
