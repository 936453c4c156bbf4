"""Devices over HTTP: a real service, an inventory whose looks a test plays."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.agent.devices.inventory import Inventory
from runner.core.devices.reading import ProcessOnDevice
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.gpu.vitals import FakeInventory
from tests.unit.runner.agent.devices.test_inventory import CARDS, GIB, IDLE, Watch, Whose
from tests.unit.runner.server.api.test_jobs import Site as Routes
from tests.unit.runner.server.api.test_jobs import error

STRANGER = 54321 if os.getuid() != 54321 else 54322


class Site(Routes):
    """A site with two devices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        service, clock = self.service, FakeClock()
        clock.forward(100)
        self.watch, self.whose = Watch(CARDS, {}, clock, tuple), Whose()
        self.inventory = Inventory(self.watch, self.whose, SqliteDeviceMarks(self.store, "boot"), clock)
        self.look()
        service.daemon.context = replace(service.daemon.context, inventory=self.inventory)

    def look(self) -> None:
        self.watch.look()
        self.inventory.update()

    def listed(self) -> dict[str, dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/devices").json()["devices"]
        return {each["name"]: each for each in found}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def test_everything_that_is_known_of_a_device_is_told_and_the_rest_is_null(site: Site) -> None:
    first = site.listed()["GPU-0"]
    assert (first["uuid"], first["model"], first["capability"], first["numa"]) == ("GPU-aa", "H100", "9.0", 1)
    assert (first["memory_bytes"], first["used_bytes"], first["processes"]) == (80 * GIB, GIB // 2, [])
    assert (first["state"], first["reason"], first["jobs"]) == ("free", "", [])
    unknown = ("util", "temperature_c", "power_w", "ecc_uncorrectable", "throttled", "parent")
    assert {name: first[name] for name in unknown} == dict.fromkeys(unknown)


def test_who_has_a_device_and_what_runs_on_it_is_told(site: Site) -> None:
    site.submit()
    site.until("running")
    site.inventory.schedulable({"GPU-aa": "1"})
    site.whose.jobs[5] = "1"
    site.watch.healths["GPU-aa"] = replace(IDLE, processes=processes(5, 4121), throttled=("heat",))
    site.look()
    first = site.listed()["GPU-0"]
    assert first["state"] == "allocated"
    assert [(job["id"], job["name"]) for job in first["jobs"]] == [("1", "job")]
    assert [(each["pid"], each["job"], each["foreign"]) for each in first["processes"]] == [
        (5, "1", False),
        (4121, None, True),
    ]
    assert first["throttled"] == ["heat"]


def processes(*pids: int) -> tuple[ProcessOnDevice, ...]:
    return tuple(ProcessOnDevice(pid, used_bytes=GIB) for pid in pids)


def test_an_operator_drains_a_device_and_resumes_it(site: Site) -> None:
    drained = site.ask("POST", "/devices/GPU-1/drain", {"reason": "new fan"}).json()["device"]
    assert (drained["uuid"], drained["state"], drained["reason"]) == ("GPU-ab", "drained", "new fan")
    assert site.listed()["GPU-1"]["state"] == "drained"
    resumed = site.ask("POST", "/devices/GPU-ab/resume", {}).json()["device"]
    assert (resumed["state"], site.listed()["GPU-1"]["state"]) == ("free", "free")


def test_only_root_and_the_daemons_user_may(site: Site) -> None:
    for path, body in (("/devices/GPU-1/drain", {"reason": "mine"}), ("/devices/GPU-1/resume", {})):
        status, kind, message = error(site.ask("POST", path, body, STRANGER))
        assert (status, kind) == (403, "refused")
        assert "only root and the daemon's own user" in message
    assert site.ask("POST", "/devices/GPU-1/drain", {"reason": "x"}, uid=0).status_code == 200
    assert site.ask("GET", "/devices", uid=STRANGER).status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"reason": ""}, {"reason": "x" * 201}, {"reason": "x", "until": "noon"}]
)
def test_a_drain_without_a_reason_or_with_more_is_refused(site: Site, body: dict[str, str]) -> None:
    assert error(site.ask("POST", "/devices/GPU-1/drain", body))[0] == 422


def test_an_unknown_device_is_named_with_those_there_are(site: Site) -> None:
    status, kind, message = error(site.ask("POST", "/devices/GPU-9/drain", {"reason": "x"}))
    assert (status, kind) == (422, "usage")
    assert message == "GPU-9: there is no such device; there are GPU-0, GPU-1; see runner gpus"


def test_what_is_in_service_cannot_be_resumed(site: Site) -> None:
    assert error(site.ask("POST", "/devices/GPU-1/resume", {}))[1] == "refused"


def test_a_daemon_that_looks_at_no_devices_says_so(site: Site) -> None:
    site.service.daemon.context = replace(site.service.daemon.context, inventory=FakeInventory())
    assert error(site.ask("GET", "/devices"))[:2] == (503, "unavailable")


def test_a_host_without_devices_says_what_it_lends(site: Site) -> None:
    site.watch.devices = ()
    site.look()
    answer = site.ask("GET", "/devices").json()
    assert answer == {"devices": [], "cpus": 4.0, "memory_bytes": 16 * GIB}
