"""Requests that schemathesis makes from the daemon's own OpenAPI, as an ordinary user over the socket.

No request may be answered with a 5xx, except 503, which says that something is away for a while, and every
answer must be as the document describes it.  The short
form runs in ``make test``; ``RUNNER_FUZZ_CALLS=10000`` makes so many calls.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from docker.transport import UnixHTTPAdapter
from hypothesis import HealthCheck, Phase, given, settings

from bench.support.daemon import runner_command
from runner.client.autostart import Endpoint, NoDaemon
from runner.client.client import Client
from tests.fakes.daemon.generated_client import Checker, answers, client_source
from tests.fakes.patience import patience

CALLS: Final = int(os.environ.get("RUNNER_FUZZ_CALLS", "600"))
NOBODY: Final = 65534
BASE: Final = "http://runner"
START_S: Final = 60

JOB: Final = """\
name: target
workload: {kind: program, command: [sleep, "1000"]}
resources: {cpus: 0.1, memory: 64MiB}
queue: {not_before: 2099-01-01T00:00:00Z}
"""

NO_WAIT: Final = {"wait": 0, "timeout": 0}
"""Query parameters without which a request may take a minute; where there is none, it is ignored."""


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Connect as a user who may not steer the daemon; without root as the daemon's own."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def running_daemon(directory: Path) -> Iterator[Path]:
    """Run a daemon without an engine, and yield its socket."""
    state, path, operator = directory / "state", directory / "socket", directory / "settings.yaml"
    operator.write_text("executor: process\n")
    command = [*runner_command(), "serve", "--state-dir", str(state), "--socket", str(path)]
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen([*command, "--settings", str(operator)], stdout=log, stderr=log)
    try:
        _await(path, daemon, directory / "log")
        yield path
    finally:
        daemon.terminate()
        daemon.wait(START_S)


def _await(path: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(START_S * 10):
        try:
            Client(Endpoint(str(path), None)).version()
        except NoDaemon:
            if daemon.poll() is not None:
                pytest.fail(log.read_text())
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.wait(0.1)
        else:
            return
    pytest.fail("the daemon does not answer")


@dataclass
class Tally:
    """The answers so far."""

    checker: Checker
    statuses: Counter[int] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, case: Any, answer: requests.Response) -> None:
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self.bad.append(f"{answer.status_code} {case.as_curl_command()}: {answer.text[:300]}")
        elif answer.headers.get("content-type") == "application/json" and (
            wrong := self._wrong(case, answer)
        ):
            self.bad.append(f"{answer.status_code} {case.as_curl_command()}: {wrong}: {answer.text[:300]}")

    def _wrong(self, case: Any, answer: requests.Response) -> str:
        if answer.status_code in {404, 405} and "detail" in answer.json():
            return ""  # a path that a drawn value has made another one
        path = case.operation.path.replace("{", "").replace("}", "")
        return self.checker.problem(case.operation.method, path, answer.status_code, answer.json())


def test_a_client_that_is_generated_from_the_description_works() -> None:
    """Every request has a type of answer, and a whole life of a job is answered as the types say."""
    directory = Path(tempfile.mkdtemp(prefix="runner-generated-"))
    directory.chmod(0o755)
    try:
        with running_daemon(directory) as path:
            session = session_of(path)
            described = session.get(f"{BASE}/openapi.json").json()
            operations = [each for found in described["paths"].values() for each in found.values()]
            assert all(answers(each) for each in operations)
            checker, made = Checker(described), dict[str, Any]()
            exec(client_source(described), made)  # noqa: S102  of this repository

            def ask(method: str, path: str, query: Any, body: Any) -> tuple[int, Any]:
                given = {name: value for name, value in query.items() if value is not None}
                answer = session.request(method, f"{BASE}{path}", params=given, json=body, timeout=patience())
                told = answer.json()
                assert not checker.problem(method, path, answer.status_code, told), (path, told)
                return answer.status_code, told

            client = made["Client"](ask)
            file = {"path": "/tmp/job.yaml", "text_b64": b64encode(JOB.encode()).decode()}
            assert client.submit({**file, "dry_run": True})[0] == 200
            assert client.submit(file)[0] == 201
            (job,) = client.list_jobs(mine=True)[1]["jobs"]
            assert client.get_reason(job["id"])[1]["state"] in {"preparing", "queued"}
            assert client.wait(job["id"], timeout=0)[1]["done"] is False
            assert client.apply({**file, "dry_run": True})[0] == 200
            assert client.list_revisions(job["id"])[1]["revisions"][0]["present"]
            assert client.hold(job["id"])[0] == client.release(job["id"])[0] == 200
            assert client.cancel_job(job["id"])[1]["changed"]
            assert client.list_events(job=job["id"])[1]["events"][0]["kind"] == "submitted"
            assert client.get_version()[1]["jobs"]
            assert client.get_overview()[1]["queue_length"] == 0
            assert client.job_account(job["id"])[1]["job"] == job["id"]
            assert client.get_job("absent")[0] == 404
    finally:
        shutil.rmtree(directory)


@pytest.mark.timeout(900)
def test_no_request_that_the_api_describes_is_answered_with_an_internal_error() -> None:
    directory = Path(tempfile.mkdtemp(prefix="runner-fuzz-"))
    directory.chmod(0o755)
    tally = None
    try:
        with running_daemon(directory) as path:
            client = Client(Endpoint(str(path), None))
            for name in ("target", "other"):
                with as_ordinary_user():
                    client.submit("/tmp/job.yaml", JOB.replace("target", name).encode(), None)
            described = session_of(path).get(f"{BASE}/openapi.json").json()
            tally = Tally(Checker(described))
            schema = schemathesis.openapi.from_dict(described)
            version = schema["/v1/version"]["GET"].Case()
            version.call(base_url=BASE, session=session_of(path))  # imports what another user could not read
            fuzz(schema, session_of(path), tally)
            assert client.version()["pid"]  # it is still there
    finally:
        sys.stdout.write("" if tally is None else f"{tally.statuses.total()} calls: {dict(tally.statuses)}\n")
        log = (directory / "log").read_text()
        shutil.rmtree(directory)
    assert tally is not None
    assert not tally.bad, "\n".join(tally.bad[:20])
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
    assert tally.statuses.total() >= CALLS


def session_of(path: Path) -> requests.Session:
    """Return a session whose connections lead to a Unix socket."""
    session = requests.Session()
    session.mount("http://", UnixHTTPAdapter(f"http+unix://{path}", timeout=int(patience())))
    return session


def fuzz(schema: Any, session: requests.Session, tally: Tally) -> None:
    """Ask for everything that is described, evenly."""
    operations = [found.ok() for found in schema.get_all_operations()]
    if os.geteuid() != 0:  # whoever runs the daemon may stop it
        operations = [each for each in operations if each.path != "/v1/stop"]
    each_calls = CALLS // len(operations) + 1
    for operation in operations:
        for strategy in (operation.as_strategy(), aimed(operation)):

            @settings(
                max_examples=each_calls,
                phases=[Phase.generate],
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def ask(case: Any) -> None:
                case.query = {**(case.query or {}), **NO_WAIT}
                with as_ordinary_user():
                    answer = case.call(base_url=BASE, session=session, timeout=patience())
                tally.add(case, answer)

            ask()


def aimed(operation: Any) -> Any:
    """Return cases about a job that exists, with a job file that can be read."""

    def aim(case: Any) -> Any:
        if case.path_parameters and "reference" in case.path_parameters:
            case.path_parameters["reference"] = "1"
        if isinstance(case.body, dict) and "text_b64" in case.body:
            case.body |= {"path": "/tmp/job.yaml", "text_b64": b64encode(JOB.encode()).decode()}
        return case

    return operation.as_strategy().map(aim)
