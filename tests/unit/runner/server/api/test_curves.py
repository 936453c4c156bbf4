"""The curves of jobs and of devices: kept, caught up on, and bounded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.host.curve_files import CurveFiles
from runner.core.notification import ReportedCurve
from runner.server.api import curves
from runner.services.curves import CurveService
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import GPU_JOB, Place


class Drawn(Place):
    """A site whose curves are looked at when a test says so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.restart()

    def restart(self) -> None:
        """Begin with what is on the disk, as a new daemon does."""
        self.curves = CurveService(self.service, CurveFiles(self.directory / "curves"))
        curves.attach(self.app, self.curves)

    def writes(self, *steps: int, **numbers: float) -> None:
        with (self.attempt_dir("1") / "metrics.jsonl").open("a") as file:
            for step in steps:
                said = {"time": 1000.0 + step, "step": step, "loss": 1 / (step + 1), **numbers}
                file.write(json.dumps(said) + "\n")

    def steps(self, name: str = "loss") -> list[int]:
        found: dict[str, Any] = self.ask("GET", "/jobs/1/curves").json()["curves"]
        return [point[1] for point in found.get(name, [])]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Drawn]:
    place = Drawn(tmp_path)
    yield place
    place.service.daemon.stop()


def test_a_job_has_the_curves_of_the_numbers_it_wrote(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20, accuracy=0.5)
    answer = place.ask("GET", "/jobs/1/curves").json()
    assert (answer["job"], sorted(answer["curves"])) == ("1", ["accuracy", "loss"])
    assert answer["curves"]["accuracy"] == [[1010.0, 10, 0.5, 0.5, 0.5, 1], [1020.0, 20, 0.5, 0.5, 0.5, 1]]


def test_nothing_is_lost_or_doubled_when_the_daemon_begins_again(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20)
    place.curves.sample()
    place.writes(30)  # nobody looks before the daemon dies
    place.restart()
    place.writes(40)
    place.curves.sample()
    assert place.steps() == [10, 20, 30, 40]
    place.curves.stop()
    place.restart()
    assert place.steps() == [10, 20, 30, 40]


def test_steps_that_a_resumed_attempt_repeats_are_there_once(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10, 20, 30)
    assert place.steps() == [10, 20, 30]
    place.writes(20, 30, 40)
    assert place.steps() == [10, 20, 30, 40]


def test_the_devices_of_a_job_are_sampled_beside_what_it_says(place: Drawn) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.reports(loss=0.25, items_per_s=100.0)
    place.curves.sample()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]
    assert {name: points[0][2] for name, points in found.items()} == {
        "loss": 0.25, "items_per_s": 100.0, "device 0 util": 40.0, "device 0 memory": 0.5,
    }  # fmt: skip
    history = place.ask("GET", "/devices/history").json()["curves"]
    assert {name: points[0][2] for name, points in history.items()} == {
        "GPU-a util": 40.0, "GPU-a memory": 0.5, "GPU-b util": 40.0, "GPU-b memory": 0.5,
    }  # fmt: skip


def test_the_history_of_devices_is_kept_and_ends_after_a_day(
    place: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.curves.sample()
    place.curves.stop()
    place.restart()
    assert "GPU-a util" in place.ask("GET", "/devices/history").json()["curves"]
    monkeypatch.setattr("runner.services.curves.HISTORY_S", -1.0)
    place.curves.sample()
    assert place.ask("GET", "/devices/history").json()["curves"]["GPU-a util"] == []


def test_what_a_job_wrote_at_its_end_is_kept_too(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    place.writes(10)
    place.curves.sample()
    place.writes(20)
    place.ask("POST", "/jobs/1/cancel", {})
    place.until("finished")
    place.curves.sample()
    kept = json.loads((place.directory / "curves" / "1.json").read_text())
    assert [point[1] for point in kept["curves"]["loss"]["points"]] == [10, 20]


@pytest.mark.parametrize("looked_before", [True, False])
def test_what_a_job_told_last_is_there_when_it_ends_between_two_looks(
    place: Drawn, *, looked_before: bool
) -> None:
    place.submit(JOB)
    place.until("running")
    if looked_before:
        place.reports(step=10, loss=0.5)
        place.curves.sample()
    place.reports(step=90, loss=0.25)
    place.ask("POST", "/jobs/1/cancel", {})
    place.until("finished")
    for _ in range(2):
        assert place.steps() == ([10, 90] if looked_before else [90])
        place.curves.sample()
        place.restart()
    found = place.ask("GET", "/jobs/1/curves").json()["curves"]["loss"]
    assert found[-1][1:] == [90, 0.25, 0.25, 0.25, 1]


def test_a_disk_that_fails_costs_no_curve_that_is_in_memory(place: Drawn) -> None:
    place.submit(JOB)
    place.until("running")
    (place.directory / "curves").write_text("in the way")
    place.writes(10)
    place.curves.sample()
    assert place.steps() == [10]


def test_the_curves_of_jobs_that_are_gone_are_removed(place: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CurveFiles(place.directory / "curves")
    files.write("77", {})
    monkeypatch.setattr("runner.services.curves.FORGOTTEN_EVERY", 1)
    place.curves.sample()
    assert files.names() == ("devices",)


def test_notifications_are_told_the_loss_of_a_job(place: Drawn) -> None:
    assert place.curves.reported("1") is None
    place.submit(JOB)
    place.until("running")
    assert place.curves.reported("1") is None
    with (place.attempt_dir("1") / "metrics.jsonl").open("a") as file:
        for step in (1, 2):
            file.write(
                json.dumps({"time": 1000.0 + step, "step": step, "rate": 7.0, "eval_loss": 3.0}) + "\n"
            )
    assert place.curves.reported("1") == ReportedCurve("eval_loss", ((1, 3.0), (2, 3.0)))
    place.writes(3, 4)
    found = place.curves.reported("1")
    assert found is not None
    assert found.text == "loss 0.2 at step 4, from 0.2 to 0.25"
