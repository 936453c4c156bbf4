"""What was used and the figures, as the socket and a TCP port give them."""

import http.client
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.api import seeing
from runner.api.figures_port import over_tcp
from runner.errors import UsageError
from runner.telling.exposition import CONTENT_TYPE, METRICS
from tests.unit.runner.api.test_overview import GPU_JOB, Place
from tests.unit.runner.api.test_routes import JOB

Figures = dict[tuple[str, ...], float]


class Watched(Place):
    """A site with everything that looks attached to it, and looked through once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meter = self.app.state.figures.meter

    def scrape(self) -> httpx.Response:
        self.app.state.overviews._kept = None
        return self.ask("GET", "/../metrics")

    def figures(self) -> Figures:
        return read(self.scrape().text)

    def lends(self) -> None:
        """Write what the daemon would about an attempt of an hour on two devices."""
        with self.service.store.transaction() as connection:
            connection.execute("DELETE FROM lendings")  # what the daemon itself has written
            connection.execute(
                "INSERT INTO lendings"
                " (job_id, attempt, uid, owner, team, gpus, cpus, devices, placed_at)"
                " VALUES (1, 1, 1000, 'ada', 'vision', 2, 8.0, '[]', ?)",
                (self.service.clock.now().isoformat(),),
            )


def read(text: str) -> Figures:
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
    assert answer["there"] == {"device_s": 2 * 7 * 86400.0, "cpu_s": 4 * 7 * 86400.0}


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


# --- figures


def test_the_figures_are_a_text_that_every_line_of_is_understood(place: Watched) -> None:
    place.submit(GPU_JOB)
    place.until("running")
    place.meter.look()
    answer = place.scrape()
    assert answer.headers["content-type"] == CONTENT_TYPE
    found = read(answer.text)
    assert found["runner_devices", "lent"] == 1
    assert found["runner_devices", "free"] == 1
    assert found["runner_device_utilisation_ratio", "GPU-a", "GPU-0"] == 0.4
    assert found["runner_device_memory_used_ratio", "GPU-b", "GPU-1"] == 0.5
    assert found["runner_jobs", "running"] == 1
    assert found["runner_cpus", "lent"] == 1
    assert found["runner_store_bytes", "store.db"] > 0
    assert found["runner_loop_lag_seconds",] >= 0
    states = [value for (name, *labels), value in found.items() if name == "runner_device_state"]
    assert sum(states) == 2


def test_what_is_known_of_some_devices_only_is_told_of_those(place: Watched) -> None:
    place.lately.known.clear()
    place.more["GPU-b"] = {"temperature_c": 61, "power_w": 412.5, "used_bytes": 8 * 1024**3}
    found = place.figures()
    assert found["runner_device_temperature_celsius", "GPU-b", "GPU-1"] == 61
    assert found["runner_device_power_watts", "GPU-b", "GPU-1"] == 412.5
    assert found["runner_device_memory_used_ratio", "GPU-b", "GPU-1"] == 0.1
    assert ("runner_device_utilisation_ratio", "GPU-b", "GPU-1") not in found


def test_the_queue_is_told_by_class_and_by_the_age_of_its_oldest(place: Watched) -> None:
    both = GPU_JOB.replace("gpus: 1", "gpus: 2")
    place.submit(both)
    place.until("running")
    place.submit(both)
    place.until("queued", "2")
    found = place.figures()
    assert found["runner_queue_jobs", "normal"] == 1
    assert 0 <= found["runner_queue_oldest_seconds",] < 60


def test_ends_and_decisions_are_counted(place: Watched) -> None:
    place.meter.look()
    place.submit(JOB)
    place.until("running")
    place.complete()
    place.until("finished")
    place.meter.look()
    found = place.figures()
    assert found["runner_attempts_ended_total", "completed"] == 1
    assert found["runner_decisions_total", "exit", "done"] == 1


def test_every_figure_that_is_promised_is_given(place: Watched) -> None:
    place.meter.look()
    place.more["GPU-a"] = {"temperature_c": 61, "power_w": 412.5}
    both = GPU_JOB.replace("gpus: 1", "gpus: 2")
    place.submit(both)
    place.until("running")
    place.submit(both)
    place.until("queued", "2")
    place.complete()
    place.until("finished")
    place.until("running", "2")
    place.submit(both)
    place.until("queued", "3")
    place.meter.look()
    assert {name for name, *_ in place.figures()} == {metric.name for metric in METRICS}


def test_a_scrape_does_not_wait_for_the_loop(place: Watched) -> None:
    began = time.monotonic()
    place.service.daemon.stop()  # nobody would answer
    assert place.figures()["runner_alarms",] == 0
    assert time.monotonic() - began < 10


# --- over TCP


def get(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_a_port_gives_the_figures_and_nothing_else(place: Watched) -> None:
    server = over_tcp(place.app.state.figures, "127.0.0.1:0")
    server.start()
    try:
        status, text = get(server.address, "/metrics")
        assert (status, read(text)["runner_devices", "free"]) == (200, 2)
        assert [get(server.address, path)[0] for path in ("/", "/v1/jobs", "/metrics/x")] == [404] * 3
    finally:
        server.stop()


def test_a_port_may_be_of_the_newer_protocol(place: Watched) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = over_tcp(place.app.state.figures, "[::1]:0")
    except UsageError as error:
        pytest.skip(str(error))
    server.start()
    try:
        assert get(server.address, "/metrics")[0] == 200
    finally:
        server.stop()


def test_who_hangs_up_disturbs_nobody(place: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    server = over_tcp(place.app.state.figures, "127.0.0.1:0")
    server.start()
    try:
        for rude in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.0\r\n"):
            connection = http.client.HTTPConnection(*server.address, timeout=10)
            connection.connect()
            connection.sock.sendall(rude)
            connection.close()
        assert get(server.address, "/metrics")[0] == 200
    finally:
        server.stop()
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_at_the_start(place: Watched) -> None:
    first = over_tcp(place.app.state.figures, "127.0.0.1:0")
    listen = f"127.0.0.1:{first.address[1]}"
    settings = place.service.settings.model_copy(
        update={"metrics": place.service.settings.metrics.model_copy(update={"listen": listen})}
    )
    with pytest.raises(UsageError, match=r"metrics\.listen: 127\.0\.0\.1:\d+: cannot listen"):
        seeing.attach(place.app, replace(place.service, settings=settings))
    first.server.server_close()


def test_everything_that_looks_starts_and_stops_together(place: Watched) -> None:
    settings = place.service.settings.model_copy(
        update={
            "metrics": place.service.settings.metrics.model_copy(update={"listen": "127.0.0.1:0"}),
            "watch_every_s": 0.05,
        }
    )
    looks = seeing.attach(place.app, replace(place.service, settings=settings))
    looks.start()
    assert looks.tcp is not None
    deadline = time.monotonic() + 10
    while len(looks.meter.lags) < 3:
        assert time.monotonic() < deadline
        assert get(looks.tcp.address, "/metrics")[0] == 200
    looks.stop()
    with pytest.raises(ConnectionError):
        get(looks.tcp.address, "/metrics")
