"""Usage and metrics, as the socket and a TCP port give them."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.core.scheduler.config import SchedulingOrder
from runner.files.settings.model import Metrics as MetricsSettings
from runner.server.api.metrics import CONTENT_TYPE, METRICS
from tests.unit.runner.server.api.test_jobs import JOB
from tests.unit.runner.server.api.test_overview import GPU_JOB, GPU_PROGRAM, Place

Metrics = dict[tuple[str, ...], float]


class Watched(Place):
    """A site with everything that looks attached to it, and looked through once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.monitor = self.app.state.metrics.monitor

    def scrape(self) -> httpx.Response:
        self.app.state.overviews._cached = None
        return self.ask("GET", "/../metrics")

    def metrics(self) -> Metrics:
        return read(self.scrape().text)

    def lends(self) -> None:
        """Write what the daemon would about an attempt of an hour on two devices."""
        with self.store.transaction() as connection:
            connection.execute("DELETE FROM lendings")  # what the daemon itself has written
            connection.execute(
                "INSERT INTO lendings"
                " (job_id, attempt, uid, owner, team, gpus, cpus, devices, placed_at)"
                " VALUES (1, 1, 1000, 'ada', 'vision', 2, 8.0, '[]', ?)",
                (self.service.clock.now().isoformat(),),
            )


def read(text: str) -> Metrics:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Watched]:
    place = Watched(tmp_path)
    yield place
    place.service.daemon.stop()


# --- usage


def test_nothing_was_used_of_an_idle_machine(place: Watched) -> None:
    answer: dict[str, Any] = place.ask("GET", "/usage").json()
    assert (answer["uses"], answer["total"]["device_s"], answer["by"]) == ([], 0, "user")
    since, until = (datetime.fromisoformat(answer[name]) for name in ("since", "until"))
    assert (since.minute, since.second) == (0, 0)
    assert timedelta(days=7) <= until - since < timedelta(days=7, hours=1)
    period_s = (until - since).total_seconds()
    assert answer["goodput"] == 0
    assert answer["there"] == pytest.approx({"device_s": 2 * period_s, "cpu_s": 4 * period_s}, abs=0.1)
    short = place.ask("GET", "/usage?since_s=3600").json()
    assert short["there"]["device_s"] == pytest.approx(2 * 3600)


@pytest.mark.parametrize(("by", "who"), [("user", "ada"), ("team", "vision"), ("job", "1 job")])
def test_what_was_lent_is_told_by_whom_it_is_asked_for(place: Watched, by: str, who: str) -> None:
    place.submit(JOB)
    place.until("running")
    place.lends()
    [use] = place.ask("GET", f"/usage?by={by}&since_s=3600").json()["uses"]
    assert (use["who"], use["share"], use["attempts"]) == (who, 1.0, 1)


@pytest.mark.parametrize("wrong", ["by=dog", "since_s=0", "since_s=-1", "since_s=1e12", "since_s=nan"])
def test_a_question_that_makes_no_sense_is_a_usage_error(place: Watched, wrong: str) -> None:
    assert place.ask("GET", f"/usage?{wrong}").status_code == 422


# --- metrics


def test_the_metrics_are_a_text_that_every_line_of_is_understood(place: Watched) -> None:
    place.known["GPU-a"]["state"] = "allocated"
    place.submit(GPU_JOB)
    place.until("running")
    place.monitor.sample()
    answer = place.scrape()
    assert answer.headers["content-type"] == CONTENT_TYPE
    found = read(answer.text)
    assert found["runner_devices", "allocated"] == 1
    assert found["runner_devices", "free"] == 1
    assert found["runner_device_utilisation_ratio", "GPU-a", "GPU-0"] == 0.4
    assert found["runner_device_memory_used_ratio", "GPU-b", "GPU-1"] == 0.5
    assert found["runner_jobs", "running"] == 1
    assert found["runner_cpus", "allocated"] == 1
    assert found["runner_store_bytes", "store.db"] > 0
    assert found["runner_loop_lag_seconds",] >= 0
    states = [value for (name, *labels), value in found.items() if name == "runner_device_state"]
    assert sum(states) == 2


def test_what_is_known_of_some_devices_only_is_told_of_those(place: Watched) -> None:
    place.lately.known.clear()
    place.known["GPU-b"] |= {"temperature_c": 61, "power_w": 412.5, "used_bytes": 8 * 1024**3, "util": None}
    found = place.metrics()
    assert found["runner_device_temperature_celsius", "GPU-b", "GPU-1"] == 61
    assert found["runner_device_power_watts", "GPU-b", "GPU-1"] == 412.5
    assert found["runner_device_memory_used_ratio", "GPU-b", "GPU-1"] == 0.1
    assert ("runner_device_utilisation_ratio", "GPU-b", "GPU-1") not in found


def test_the_queue_is_told_by_class_and_by_the_age_of_its_oldest(place: Watched) -> None:
    both = GPU_PROGRAM.replace("gpus: 1", "gpus: 2")
    place.submit(both)
    place.until("running")
    place.submit(both)
    place.until("queued", "2")
    found = place.metrics()
    assert found["runner_queue_jobs", "normal"] == 1
    assert 0 <= found["runner_queue_oldest_seconds",] < 60


def test_ends_and_decisions_are_counted(place: Watched) -> None:
    place.monitor.sample()
    place.submit(JOB)
    place.until("running")
    place.complete()
    place.until("finished")
    place.monitor.sample()
    found = place.metrics()
    assert found["runner_attempts_ended_total", "completed"] == 1
    assert found["runner_decisions_total", "exit", "done"] == 1


def name_users(place: Watched, most: int = 50) -> None:
    """Let metrics name users."""
    live = place.service.live
    metrics = MetricsSettings(per_user=True, most_users=most)
    live.value = live.value.model_copy(update={"metrics": metrics})


def test_users_are_named_where_the_operator_says_so_and_only_so_many(place: Watched) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    assert not any(name.startswith("runner_user_") for name, *_ in place.metrics())
    name_users(place)
    owner = place.service.store.find("1")
    assert owner is not None
    assert place.metrics()["runner_user_jobs", "running", owner.owner.name] == 1
    assert place.metrics()["runner_user_devices", owner.owner.name] == 1
    name_users(place, most=1)
    entry = place.service.daemon.tracked_jobs["1"]
    for number in range(3):
        row = replace(entry.row, owner=replace(entry.row.owner, name=f"u{number}"))
        place.service.daemon.tracked_jobs[f"{number + 7}"] = replace(entry, row=row)
    users = {labels[0] for name, *labels in place.metrics() if name == "runner_user_cpus"}
    assert len(users) == 2
    assert "(others)" in users
    for number in range(3):
        del place.service.daemon.tracked_jobs[f"{number + 7}"]


def test_every_figure_that_is_promised_is_given(place: Watched) -> None:
    name_users(place)
    place.monitor.sample()
    place.known["GPU-a"] |= {"temperature_c": 61, "power_w": 412.5}
    both = GPU_PROGRAM.replace("gpus: 1", "gpus: 2")
    place.submit(both)
    place.until("running")
    place.submit(both)
    place.until("queued", "2")
    place.complete()
    place.until("finished")
    place.until("running", "2")
    place.submit(both)
    place.until("queued", "3")
    place.monitor.sample()
    site = place.service.daemon.context.site
    before, site.rules = site.rules, replace(site.rules, order=SchedulingOrder.ATTAINED)
    assert {name for name, *_ in place.metrics()} == {each.name for each in METRICS}
    site.rules = before


def test_a_scrape_does_not_wait_for_the_loop(place: Watched) -> None:
    place.service.daemon.stop()  # nobody would answer
    assert place.metrics()["runner_alarms",] == 0
