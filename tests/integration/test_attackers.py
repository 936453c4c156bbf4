"""Attacks of another user of the machine on a daemon of root, over its socket and beside it."""

import http.client
import json
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.daemon.service import Service, service
from tests.fakes.host.users import with_uid

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]
BOB = 4321


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    """A daemon of root, whose environment tells its libraries to trust everybody."""
    with service(executor="process") as made:
        made.env["FORWARDED_ALLOW_IPS"] = "*"
        yield made.start()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("runner")
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def request(daemon: Service, method: str, path: str, **headers: str) -> tuple[int, str]:
    """Return status and body of a response to a request with headers."""
    connection = UnixConnection(daemon.socket)
    connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
    response = connection.getresponse()
    return response.status, response.read().decode()


@pytest.mark.parametrize("claim", ["[0:0]", "0:0", "0:0, 0:0", "127.0.0.1"])
@pytest.mark.parametrize("header", ["X_Forwarded_For", "Forwarded", "X_Real_IP"])
def test_a_header_makes_nobody_somebody_else(daemon: Service, claim: str, header: str) -> None:
    job_id = next(iter(daemon.jobs), None) or daemon.submit(
        daemon.training("roots", 3), "--not-before", "2099-01-01T00:00:00+00:00", end="queued"
    )
    for method, path in (("GET", f"/v1/jobs/{job_id}/log"), ("POST", "/v1/stop")):
        _, answer = with_uid(BOB, partial(request, daemon, method, path, **{header: claim}))
        assert isinstance(answer, list)
        assert answer[0] == 403, answer
    assert daemon.state_of(job_id) == "queued"


# --- Uids without an account, of which one person can have 65,536 (unshare -U --map-auto)


STRANGER = 4_000_001


def pages(daemon: Service) -> list[int]:
    paths = ("/v1/version", "/v1/jobs", "/v1/events", "/v1/devices", "/v1/overview", "/metrics")
    return [request(daemon, "GET", path)[0] for path in paths]


def test_a_daemon_of_all_users_serves_nobody_without_an_account() -> None:
    with service(executor="process", unknown_uids=None) as daemon:
        daemon.start()
        assert with_uid(1, partial(pages, daemon)) == (0, [200] * 6)
        assert with_uid(STRANGER, partial(pages, daemon)) == (0, [403] * 6)
        file = daemon.training("strangers", 3)
        code, said = with_uid(STRANGER, partial(daemon.client.submit, str(file), file.read_bytes(), None))
        assert code == 3
        assert said == (f"uid {STRANGER} has no account on this machine; ask the operator (unknown_uids)")


def test_an_operator_may_let_everybody_in(daemon: Service) -> None:
    assert with_uid(STRANGER, partial(pages, daemon)) == (0, [200] * 6)


# --- Classes that go before others, and names of secrets


def test_a_class_that_preempts_is_refused_to_others_than_root(daemon: Service) -> None:
    file = daemon.training("pushing", 3, queue={"priority_class": "urgent"})
    submit = partial(daemon.client.submit, str(file), file.read_bytes(), None)
    code, said = with_uid(BOB, submit)
    assert code == 3
    assert "the operator decides (queue.classes.urgent.users)" in str(said)


def test_nobody_else_lists_the_secrets_of_a_job(daemon: Service) -> None:
    (daemon.root / "token").write_text("s3cret")
    sleeps = {"kind": "program", "command": ["sleep", "600"]}
    file = daemon.file("secretive", workload=sleeps, secrets={"token": "./token"})
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    secrets = daemon.state / "jobs" / job_id / "secrets"
    assert (secrets / "token").exists()
    found = with_uid(BOB, partial(listed, secrets))
    daemon.runner("cancel", job_id)
    assert found == (0, "PermissionError")


def listed(directory: Path) -> object:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError as error:
        return type(error).__name__


def test_who_submits_and_who_is_refused_is_in_the_audit_log(daemon: Service) -> None:
    job_id = daemon.submit(
        daemon.training("audited", 3), "--not-before", "2099-01-01T00:00:00Z", end="queued"
    )
    with_uid(BOB, partial(request, daemon, "POST", f"/v1/jobs/{job_id}/cancel"))
    audit = daemon.state / "audit.log"
    found = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [entry["uid"] for entry in found if entry.get("jobs") == [job_id]] == [0]
    refused = [entry for entry in found if entry["path"] == f"/v1/jobs/{job_id}/cancel"]
    assert [(entry["uid"], entry["status"]) for entry in refused] == [(BOB, 403)]
    assert audit.stat().st_mode & 0o777 == 0o600
