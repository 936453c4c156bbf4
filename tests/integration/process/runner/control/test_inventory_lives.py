"""Two lives of the inventory over one store and a compiled NVML: what the second knows of the first."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.hosts import GIB, NvidiaHost, compile_nvml, h100s

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

LIVE = """
import json, os, sys
from pathlib import Path
from runner.agent.devices.health import DeviceHealthMonitor
from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.gpu.xid import KernelLog
from runner.adapters.gpu.nvidia import NvidiaHealth, NvidiaProbe
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.devices.inventory import Inventory
from runner.base.instant import Instant
from tests.fakes.daemon.clock import FakeClock

class Nobody:
    def of(self, processes):
        return {}

place = Path(sys.argv[1])
store, clock = SqliteStore(place / "store.db"), FakeClock()
clock.forward(1000)
for life in json.load(sys.stdin):
    probes, counts = {"nvidia": NvidiaHealth()}, {"nvidia": NvidiaProbe(place)}
    watch = DeviceHealthMonitor((), probes, clock, KernelLog(place / "kmsg").xids, counts=counts)
    inventory = Inventory(watch, Nobody(), SqliteDeviceMarks(store, "boot"), clock)
    for text, seconds, lent in life:
        clock.forward(seconds)
        Path(os.environ["RUNNER_FAKE_NVML"]).write_text(text)
        watch.poll("nvidia")
        inventory.update()
        inventory.tick(Instant(clock.now(), clock.monotonic()), ())
        shown = inventory.schedulable(lent)
        print(json.dumps([[each.state.value, each.reason] for each in shown]))
"""

Turn = tuple[str, float, dict[str, str]]
"""What the driver says, how long after the turn before, and who has what afterwards."""


def lived(tmp_path: Path, *lives: list[Turn]) -> list[list[tuple[str, str]]]:
    """Return state and reason of every device after every turn of all lives."""
    driver = compile_nvml(tmp_path / "driver")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "RUNNER_FAKE_NVML": str(tmp_path / "host")}
    command: list[Any] = [sys.executable, "-W", "error", "-c", LIVE, str(tmp_path)]
    answer = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, input=json.dumps(lives)
    )
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("[[")]
    return [[(state, reason) for state, reason in line] for line in lines]


def using(amount: int) -> str:
    host: NvidiaHost = h100s(2)
    host[0].say(used=amount)
    return host.text()


def test_a_device_that_was_dirty_for_50_s_before_a_restart_is_quarantined_after_10_more(
    tmp_path: Path,
) -> None:
    clean, dirty = using(GIB // 2), using(9 * GIB)
    begun: list[Turn] = [(clean, 2, {}), (clean, 2, {"GPU-h0": "7"}), (dirty, 2, {})]
    first: list[Turn] = [*begun, *[(dirty, 2.0, {}) for _ in range(25)]]
    told = lived(tmp_path, first, [(dirty, 2, {}), (dirty, 9, {}), (dirty, 2, {})])
    assert [each[0][0] for each in told[:4]] == ["free", "allocated", "dirty", "dirty"]
    before, *after = (each[0] for each in told[-4:])
    why = "after job 7: 9 GiB in use by no process that can be seen, where 0.5 GiB is normal"
    assert [before, *after] == [("dirty", why)] * 3 + [("quarantined", f"not clean 1m {why}")]
    assert {each[1][0] for each in told} == {"free"}


def test_a_card_that_leaks_is_held_against_what_it_showed_when_it_was_empty(tmp_path: Path) -> None:
    [_, first], [_, second] = (lived(tmp_path / name, *lives) for name, lives in LEAKS.items())
    assert first[0] == ("dirty", "1.5 GiB in use by no process that can be seen, where 0.5 GiB is normal")
    assert second[0] == ("free", "")  # within one life's first look nobody could know


LEAKS: dict[str, tuple[list[Turn], ...]] = {
    "kept": ([(using(GIB // 2), 2, {})], [(using(3 * GIB // 2), 2, {})]),
    "unknown": ([(using(3 * GIB // 2), 2, {})], [(using(3 * GIB // 2), 2, {})]),
}
