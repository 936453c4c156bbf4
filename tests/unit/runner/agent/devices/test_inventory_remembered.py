"""Devices in the inventory of a daemon that begins: what is normal, and which job left one dirty."""

from pathlib import Path

import pytest

from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Unavailable
from runner.core.scheduler.snapshot import DeviceState
from tests.unit.runner.agent.devices.test_inventory import GIB, Site, running


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(SqliteStore(tmp_path / "store.db"))


def test_the_time_that_a_device_has_to_be_clean_goes_on_over_a_restart(site: Site) -> None:
    site.look()
    site.tick(running("7", "GPU-aa"))
    site.tick()
    site.use("GPU-aa", used=30 * GIB)
    for _ in range(25):
        site.look()
        site.tick()
    assert site.states()["GPU-0"] == "dirty"
    began = site.inventory.views()[0].standing.since
    site.restart()
    site.look()
    site.tick()
    [standing, _] = (each.standing for each in site.inventory.views())
    assert (standing.state, standing.since) == (DeviceState.DIRTY, began)
    assert standing.reason.startswith("after job 7: 30 GiB in use by no process")
    site.look(6)
    assert site.states() == {"GPU-0": "dirty", "GPU-1": "free"}
    site.look(4)
    assert site.states() == {"GPU-0": "quarantined", "GPU-1": "free"}


def test_while_there_was_no_daemon_nobody_could_see_that_a_device_is_clean(site: Site) -> None:
    site.look()
    site.tick(running("7", "GPU-aa"))
    site.tick()
    site.use("GPU-aa", used=30 * GIB)
    for _ in range(4):
        site.look()
        site.tick()
    site.clock.forward(3600)
    site.restart()
    assert site.states()["GPU-0"] == "dirty"
    del site.watch.healths["GPU-aa"]
    site.look()
    assert site.states()["GPU-0"] == "free"


def test_what_is_normal_on_a_clean_device_is_not_learned_anew_from_one_that_leaks(site: Site) -> None:
    site.look()
    site.tick()
    site.use("GPU-aa", used=3 * GIB // 2)
    site.restart()
    site.look()
    assert site.states() == {"GPU-0": "dirty", "GPU-1": "free"}
    shown = site.inventory.views()[0].standing
    assert shown.reason == "1.5 GiB in use by no process that can be seen, where 0.5 GiB is normal"
    site.inventory.resume("GPU-0", "root")
    site.tick()
    site.restart()
    site.look()
    assert site.states()["GPU-0"] == "free"


def test_a_boot_empties_devices_and_what_was_kept_of_them_is_forgotten(site: Site) -> None:
    site.look()
    site.tick()
    site.use("GPU-aa", used=3 * GIB // 2)
    site.boot = "second"
    site.restart()
    site.look()
    assert site.states() == {"GPU-0": "free", "GPU-1": "free"}


def test_a_device_that_is_clean_at_once_costs_no_writing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.look()
    site.tick()
    monkeypatch.setattr(SqliteDeviceMarks, "keep", lambda *_: pytest.fail("something was written"))
    for _ in range(3):
        site.tick(running("7", "GPU-aa"))
        site.tick()
        site.look()
        site.tick()
    assert site.states()["GPU-0"] == "free"


def test_what_was_found_out_while_the_disk_was_full_is_kept_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Unavailable("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteDeviceMarks, "keep", full)
        site.look()
        site.tick()
    assert not SqliteDeviceMarks(site.store, site.boot).kept()
    site.tick()
    assert SqliteDeviceMarks(site.store, site.boot).kept()["GPU-aa"].baseline_bytes == GIB // 2
