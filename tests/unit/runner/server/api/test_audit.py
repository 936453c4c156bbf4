"""The audit log."""

import asyncio
import fcntl
import json
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.server.api.audit import AuditLog, AuditMiddleware
from tests.fakes.daemon.clock import FakeClock


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ask(path: Path, method: str, status: int, target: str = "/v1/jobs/3/cancel") -> None:
    """Answer one request with a status."""

    async def app(scope: MutableMapping[str, Any], receive: object, send: Any) -> None:
        del receive
        scope["state"]["audited_jobs"] = ["7"]
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def ignore(*_: object) -> None:
        return

    scope = {
        "type": "http", "method": method, "path": target, "client": ("1234:99", 4711), "state": {},
        "headers": [],
    }  # fmt: skip
    asyncio.run(AuditMiddleware(app, AuditLog(path, FakeClock()))(scope, ignore, ignore))


def test_a_change_is_noted_with_who_what_and_which_process(tmp_path: Path) -> None:
    ask(tmp_path / "audit.log", "POST", 200)
    (entry,) = entries(tmp_path / "audit.log")
    assert entry.pop("at")
    assert entry == {
        "uid": 1234, "gid": 99, "pid": 4711, "method": "POST", "path": "/v1/jobs/3/cancel",
        "status": 200, "jobs": ["7"],
    }  # fmt: skip
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("method", "status", "count"), [("GET", 200, 0), ("GET", 403, 1), ("POST", 403, 1), ("DELETE", 404, 1)]
)
def test_what_only_reads_is_noted_when_it_is_refused(
    tmp_path: Path, method: str, status: int, count: int
) -> None:
    ask(tmp_path / "audit.log", method, status)
    assert len(entries(tmp_path / "audit.log")) == count


def test_a_hostile_path_is_one_short_line(tmp_path: Path) -> None:
    ask(tmp_path / "audit.log", "POST", 404, '/x\n{"uid": 0}' + "y" * 9999)
    (entry,) = entries(tmp_path / "audit.log")
    assert len(entry["path"]) == 256


def test_large_files_are_renamed_and_few_are_kept(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", FakeClock(), max_bytes=1, kept_files=3)
    for number in range(5):
        audit.write({"number": number})
    found = {path.name: entries(path)[0]["number"] for path in tmp_path.iterdir()}
    assert found == {"audit.log.1": 4, "audit.log.2": 3}


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to("/etc/passwd")
    ask(tmp_path / "audit.log", "POST", 200)
    assert "4711" not in Path("/etc/passwd").read_text()


def test_what_was_written_before_is_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    whole = b""
    for number in range(20):  # each time another daemon
        AuditLog(path, FakeClock()).write({"number": number})
        assert path.read_bytes().startswith(whole)
        whole = path.read_bytes()
    assert [entry["number"] for entry in entries(path)] == list(range(20))


def test_a_file_that_may_only_grow_keeps_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", forbidden)
    audit = AuditLog(tmp_path / "audit.log", FakeClock(), max_bytes=1)
    with capture_logs() as log:
        for number in range(3):
            audit.write({"number": number})
    assert [entry["number"] for entry in entries(tmp_path / "audit.log")] == [0, 1, 2]
    assert [each["event"] for each in log] == ["audit.not_rotated"]


@pytest.mark.parametrize("attributes", [0x20, 0x80000])
def test_the_log_says_at_the_start_whether_the_file_may_only_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attributes: int
) -> None:
    def ioctl(_descriptor: int, _request: int, flags: bytearray) -> None:
        flags[:4] = attributes.to_bytes(4, sys.byteorder)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    audit = AuditLog(tmp_path / "audit.log", FakeClock())
    with capture_logs() as log:
        audit.describe()  # there is none yet
        audit.write({})
        audit.describe()
    assert [(each["event"], each["only_grows"]) for each in log] == [("audit.opened", attributes == 0x20)]
