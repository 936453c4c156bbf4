import json

import pytest

from runner.cli import gpus
from tests.fakes.daemon.api import FakeApi, Json
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


LENT = device(state="allocated", reason="job 12", jobs=[{"id": "12", "name": "train", "owner": "ann"}])
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
        "GPU-0", "GPU-aa", "NVIDIA H100", str(GIB // 2), str(80 * GIB), "97.0", "61", "650.4", "allocated",
        "2030-01-01T00:00:00+00:00", "12", "job 12",
    ]  # fmt: skip
    assert (second[5], second[6], second[8]) == ("-", "-", "foreign")
    assert second[10:] == ["-", "a foreign process (pid 4121)"]


def test_json_is_what_the_daemon_said(api: FakeApi, invoke: Invoke) -> None:
    answer(api, LENT, FOREIGN)
    assert [json.loads(line) for line in invoke("gpus", "--json").stdout.splitlines()] == [LENT, FOREIGN]


def test_a_host_without_devices_says_what_jobs_can_have(api: FakeApi, invoke: Invoke) -> None:
    answer(api)
    result = invoke("gpus")
    assert (result.stdout, result.stderr) == ("", "no GPU here; 16 CPUs and 64 GiB of memory are for jobs\n")


def test_on_a_terminal_it_is_a_table(api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(api, LENT, FOREIGN)
    monkeypatch.setattr("runner.cli.console.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    head, first, second = invoke("gpus").stdout.splitlines()
    assert head.split()[:4] == ["GPU", "UUID", "MODEL", "MEMORY"]
    for word in ("0.5/80.0G", "97%", "61C", "650W", "allocated", "job 12 (train, ann)"):
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


def test_several_devices_are_drained_and_resumed_at_once(api: FakeApi, invoke: Invoke) -> None:
    api.changes["devices"] = [{"device": device(state="drained", name=f"GPU-{n}")} for n in (0, 1)]
    assert invoke("gpus", "drain", "GPU-0", "GPU-1", "--reason", "fan").stdout == (
        "GPU-0 is drained\nGPU-1 is drained\n"
    )
    api.changes["devices"] = [{"device": device(name=f"GPU-{n}")} for n in (0, 1)]
    assert invoke("gpus", "resume", "GPU-0", "GPU-1").stdout == "GPU-0 is free\nGPU-1 is free\n"


@pytest.mark.parametrize("reason", ["", " ", "x" * 201])
def test_a_reason_is_neither_empty_nor_a_story(api: FakeApi, invoke: Invoke, reason: str) -> None:
    result = invoke("gpus", "drain", "GPU-0", "--reason", reason)
    assert (result.exit_code, api.asked) == (2, [])
    assert "must have 1 to 200 characters" in result.stderr


@pytest.mark.parametrize(("columns", "kept"), [("80", "GPU MODEL MEMORY UTIL STATE"), ("40", "GPU STATE")])
def test_a_narrow_terminal_keeps_the_name_the_state_and_the_reason(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, columns: str, kept: str
) -> None:
    answer(api, {**LENT, "uuid": "GPU-5a1fe0b2-0b1c-4d6e-9f00-d4f4ba9c2d11"}, FOREIGN)
    monkeypatch.setattr("runner.cli.console.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    head, *rows = invoke("gpus").stdout.splitlines()
    assert set(kept.split()) <= set(head.split())
    assert head.rstrip().endswith(("JOB OR REASON", "JOB OR"))
    assert [row.split()[0] for row in rows if row.startswith("GPU")] == ["GPU-0", "GPU-1"]
    assert " allocated " in rows[0]
    assert all(len(line) <= int(columns) for line in rows)
    assert "(pid 4121)" in " ".join(" ".join(rows).split())


def test_a_stranger_on_a_lent_device_is_told_beside_its_job() -> None:
    there = {"pid": 7, "foreign": False, "user": "ann", "program": "python"}
    strangers = [
        {"pid": 4121, "foreign": True, "user": "bob", "program": "python"},
        {"pid": 4122, "foreign": True, "user": None, "program": None},
    ]
    *_, last = gpus.cells({**LENT, "processes": [there, *strangers]}, 1893456000.0)
    assert last == (
        "job 12 (train, ann); foreign process (pid 4121, bob, python); foreign process (pid 4122)"
    )


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
