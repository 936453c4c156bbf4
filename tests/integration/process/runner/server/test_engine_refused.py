"""A daemon on a host whose engine cannot run jobs, through a stand-in that answers as that engine does."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.fakes.daemon.service import service

PODMAN, ROOTLESS, DOCKER = "Podman Engine", "name=rootless", "Engine"


@contextmanager
def engine(place: Path, component: str, option: str) -> Iterator[str]:
    """Yield the address of an engine that says this about itself, and nothing else."""
    answers = {
        "version": {"ApiVersion": "1.41", "MinAPIVersion": "1.24", "Components": [{"Name": component}]},
        "info": {"ServerVersion": "5.4.2", "SecurityOptions": [option]},
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.rpartition("/")[2])
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def address_string(self) -> str:
            return "-"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with socketserver.ThreadingUnixStreamServer(str(place / "engine.sock"), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"unix://{place}/engine.sock"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("component", "option", "name"),
    [(PODMAN, "name=seccomp", "Podman"), (DOCKER, ROOTLESS, "rootless Docker")],
)
def test_a_daemon_that_is_to_use_it_refuses_to_start_in_one_line(
    tmp_path: Path, component: str, option: str, name: str
) -> None:
    with engine(tmp_path, component, option) as address, service(executor="docker", engine=address) as made:
        said = made.runner("serve", "--state-dir", str(made.state), code=2)
    [line] = [each for each in said.splitlines() if "is not supported" in each]
    assert f"{name} is not supported: " in line
    assert "say executor: process in the settings" in line


def test_where_the_daemon_may_choose_jobs_run_as_processes_and_the_log_says_why(tmp_path: Path) -> None:
    with engine(tmp_path, PODMAN, "") as address, service(executor="auto", engine=address) as made:
        made.start()
        log = (made.state / "daemon.log").read_text()
    [line] = [each for each in log.splitlines() if "executor.fallback" in each]
    assert "Podman is not supported" in line
