"""One answer for a whole screen, over a real daemon and store."""

import time
from collections.abc import Iterator
from datetime import datetime
from math import inf
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from jobs.contract import Phase, Status, dump
from runner.core.ports.devices import Device
from runner.server.api import status
from tests.fakes.gpu.vitals import FakeInventory
from tests.fakes.patience import patience
from tests.unit.runner.server.api.test_jobs import JOB, Site

GPU_PROGRAM = (
    "workload: {kind: program, command: [train]}\nretry: {backoff: 0s}\n"
    "resources: {cpus: 1, memory: 1GiB, gpus: 1}\naccelerator: cuda\n"
)
GPU_JOB = JOB + "resources: {cpus: 1, memory: 1GiB, gpus: 1}\naccelerator: cuda\n"


class Place(Site):
    """A site with two GPUs that answers screens."""

    def __post_init__(self) -> None:
        self.lately = FakeInventory({"device.util": 40.0, "device.memory": 0.5})
        self.fake_inventory = self.lately
        self.devices = tuple(Device(f"GPU-{letter}", "nvidia", "H100", 80 * 1024**3) for letter in "ab")
        super().__post_init__()
        free = {"memory_bytes": 80 * 1024**3, "state": "free", "util": 40.0, "jobs": []}
        self.known: dict[str, dict[str, Any]] = {
            device.uuid: {"uuid": device.uuid, "name": f"GPU-{number}", **free}
            for number, device in enumerate(self.devices)
        }
        self.starts: dict[str, str] = {}
        status.attach(self.app, self.service, lambda: self.known, lambda row: self.starts.get(row.job.id))

    def overview(self, wait: float = 0) -> dict[str, Any]:
        self.app.state.overviews._cached = None
        found: dict[str, Any] = self.ask("GET", f"/overview?wait={wait}").json()
        return found

    def reports(self, job_id: str = "1", **facts: Any) -> None:
        said = {"phase": Phase.TRAIN, "time": time.time(), "step": 10, "total_steps": 100, **facts}
        (self.attempt_dir(job_id) / "status.json").write_text(dump(Status.model_validate(said)))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.service.daemon.stop()


def test_an_idle_machine_shows_what_is_known_of_its_devices_and_what_it_lends(place: Place) -> None:
    found = place.overview()
    assert found["devices"] == [{**place.known[f"GPU-{letter}"], "memory": 0.5} for letter in "ab"]
    assert (found["jobs"], found["queue"], found["queue_length"]) == ([], [], 0)
    assert found["cpus"] == {"lent": 0, "total": 4.0}
    assert datetime.fromisoformat(found["at"]).tzinfo is not None


def test_a_job_is_shown_with_its_pace_and_how_busy_its_devices_are(place: Place) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.reports(items_per_s=5100.0, data_wait=0.83)
    found = place.overview()
    [job] = found["jobs"]
    assert (job["progress"]["items_per_s"], job["progress"]["data_wait"]) == (5100.0, 0.83)
    assert (job["util"], job["memory"], job["wants"]["gpus"]) == (40.0, 0.5, 1)
    assert job["started_at"]
    assert found["cpus"]["lent"] == 1


def test_a_waiting_job_is_shown_with_its_reason_the_next_one_first(place: Place) -> None:
    both = GPU_PROGRAM.replace("gpus: 1", "gpus: 2")
    place.submit(both)
    place.until("running")
    place.submit(both, name="later")
    place.submit(both + "priority: 90\n", name="sooner")
    place.until("queued", "3")
    found = place.overview()
    assert [each["name"] for each in found["queue"]] == ["sooner", "later"]
    assert found["queue_length"] == 2
    assert all(each["wants"]["gpus"] == 2 for each in found["queue"])


def test_the_job_that_will_start_first_is_shown_first(place: Place) -> None:
    both = GPU_PROGRAM.replace("gpus: 1", "gpus: 2")
    for number in range(1, 5):
        place.submit(both)
        place.until("running" if number == 1 else "queued", str(number))
    place.starts |= {"4": "2030-01-01T10:00:00Z", "3": "2030-01-01T12:00:00Z"}
    found = [(each["id"], each["starts_at"]) for each in place.overview()["queue"]]
    assert found == [("4", "2030-01-01T10:00:00Z"), ("3", "2030-01-01T12:00:00Z"), ("2", None)]


def test_a_device_of_which_nobody_knows_anything_is_no_reason_to_fail(place: Place) -> None:
    place.lately.known.clear()
    place.known.clear()
    place.submit(GPU_JOB)
    place.until("running")
    found = place.overview()
    assert found["devices"] == []
    assert found["jobs"][0]["util"] is None


def test_a_question_that_waits_is_answered_when_something_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LONGEST_WAIT_S", inf)
    answered = Event()

    def change() -> None:
        while not answered.wait(0.01):
            place.service.broadcast.announce()

    changes = Thread(target=change, daemon=True)
    changes.start()
    assert "devices" in place.overview(wait=1e9)
    answered.set()
    changes.join(patience())


def test_two_screens_at_once_get_one_answer(place: Place) -> None:
    overviews = place.app.state.overviews
    assert overviews.now() is overviews.now()
