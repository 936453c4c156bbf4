import json

import pytest

from runner.cli import gpus
from tests.fakes.api import FakeApi, Json
from tests.unit.runner.cli.conftest import Invoke

GIB = 1024**3


def device(**more: object) -> Json:
    known: Json = {
        "uuid": "GPU-aa",
        "name": "GPU-0",
        "model": "NVIDIA H100",
        "memory_bytes": 80 * GIB,
        "used_bytes": GIB // 2,
        "util": 97.0,
        "temperature_c": 61,
        "power_w": 650.4,
        "state": "free",
        "reason": "",
        "since": "2030-01-01T00:00:00+00:00",
        "jobs": [],
    }
    return {**known, **more}


LENT = device(state="lent", reason="job 12", jobs=[{"id": "12", "name": "train", "owner": "ann"}])
FOREIGN = device(
    name="GPU-1", state="foreign", reason="a foreign process (pid 4121)", util=None, temperature_c=None
)


def answer(api: FakeApi, *devices: Json) -> None:
    listed: Json = {"devices": list(devices), "cpus": 16.0, "memory_bytes": 64 * GIB}
    api.changes.setdefault("devices", []).append(listed)


def test_in_a_pipe_each_device_is_a_line_of_cells(api: FakeApi, invoke: Invoke) -> None:
    answer(api, LENT, FOREIGN)
    first, second = (line.split("\t") for line in invoke("gpus").stdout.splitlines())
    assert first == [
        "GPU-0", "GPU-aa", "NVIDIA H100", str(GIB // 2), str(80 * GIB), "97.0", "61", "650.4", "lent",
        "2030-01-01T00:00:00+00:00", "12", "job 12",
    ]  # fmt: skip
    assert (second[5], second[6], second[8]) == ("-", "-", "foreign")
    assert second[10:] == ["-", "a foreign process (pid 4121)"]


def test_json_is_what_the_daemon_said(api: FakeApi, invoke: Invoke) -> None:
    answer(api, LENT, FOREIGN)
    assert [json.loads(line) for line in invoke("gpus", "--json").stdout.splitlines()] == [LENT, FOREIGN]


def test_a_host_without_devices_says_what_is_lent(api: FakeApi, invoke: Invoke) -> None:
    answer(api)
    result = invoke("gpus")
    assert (result.stdout, result.stderr) == ("", "no GPU here; 16 CPUs and 64 GiB of memory are lent\n")


def test_on_a_terminal_it_is_a_table(api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(api, LENT, FOREIGN)
    monkeypatch.setattr(gpus, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    head, first, second = invoke("gpus").stdout.splitlines()
    assert head.split()[:4] == ["GPU", "UUID", "MODEL", "MEMORY"]
    for word in ("0.5/80.0G", "97%", "61C", "650W", "lent", "job 12 (train, ann)"):
        assert word in first
    assert "a foreign process (pid 4121)" in second


def test_cells_name_who_has_a_device_and_what_else_is_the_matter() -> None:
    drained = device(state="drained", reason="new fan", jobs=LENT["jobs"])
    *_, last = gpus.cells(drained, 1893456000.0 + 90)
    assert last == "job 12 (train, ann); new fan"
    *_, state, since, last = gpus.cells(device(), 1893456000.0 + 90)
    assert (state, since, last) == ("free", "1m30s", "-")


def test_draining_says_who_still_has_it(api: FakeApi, invoke: Invoke) -> None:
    api.changes["devices"] = [{"device": {**LENT, "state": "drained"}}, {"device": device(state="drained")}]
    assert invoke("gpus", "drain", "GPU-0", "--reason", "new fan").stdout == (
        "GPU-0 is drained; job 12 (train, ann) still has it\n"
    )
    assert api.asked[-1] == ("POST", "/v1/devices/GPU-0/drain", {"reason": "new fan"})
    assert invoke("gpus", "drain", "GPU-0", "--reason", "new fan").stdout == "GPU-0 is drained\n"


def test_a_drain_needs_a_reason(api: FakeApi, invoke: Invoke) -> None:
    assert (invoke("gpus", "drain", "GPU-0").exit_code, api.asked) == (2, [])


def test_resuming_says_what_came_of_it(api: FakeApi, invoke: Invoke) -> None:
    api.changes["devices"] = [
        {"device": device()},
        {"device": device(state="quarantined", reason="it no longer answers")},
        {"device": device()},
    ]
    assert invoke("gpus", "resume", "GPU-0").stdout == "GPU-0 is free\n"
    assert invoke("gpus", "resume", "GPU-0").stdout == "GPU-0 is quarantined: it no longer answers\n"
    assert json.loads(invoke("gpus", "resume", "GPU-0", "--json").stdout) == device()
