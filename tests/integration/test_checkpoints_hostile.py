"""Checkpoints that claim terabytes, beside jobs that want to be started, listed and cancelled."""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runner.base.errors import RunnerError
from runner.client.http import ErrorResponse
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.workloads.small import program

pytestmark = pytest.mark.engine

ROUNDS = 5

HOSTILE = """\
set -e
for step in 1 2 3; do
    where=$RUNNER_JOB_DIR/lineages/1/step-0000000$step
    mkdir "$where"
    truncate -s 8T "$where/state"
    printf '{"contract_version": 1, "job_id": "1", "step": %d, "lineage": 1, "attempt": 1, "revision": 1,
        "created": 0.0, "files": {"state": {"bytes": 8796093022208, "sha256": "%064d"}}}' $step 0 \\
        > "$where/manifest.json"
done
echo left
"""


@pytest.fixture
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def small_job(daemon: Service, file: Path) -> None:
    assert daemon.ends(daemon.submit(file))["outcome"] == "succeeded"


def cancelled_job(daemon: Service, file: Path) -> None:
    answer = daemon.client.submit(str(file), file.read_bytes(), None)
    assert daemon.client.act(answer["job"]["id"], "cancel", {})["changed"]


def test_sparse_checkpoints_of_8_tib_keep_nobody_from_anything(daemon: Service) -> None:
    script = daemon.root / "hostile.sh"
    script.write_text(HOSTILE)
    script.chmod(0o644)
    hostile = [program(daemon, f"hostile-{n}", ["/bin/sh", str(script)]) for n in range(4)]
    running = program(daemon, "goes-on", ["/bin/sh", "-c", f". {script}; exec sleep 600"])
    left_by = [daemon.client.submit(str(f), f.read_bytes(), None)["job"]["id"] for f in hostile]
    changed = daemon.client.submit(str(running), running.read_bytes(), None)["job"]["id"]
    daemon.prints(changed, "left")
    text = running.read_bytes().replace(b"64MiB", b"65MiB")
    body = {"path": str(running), "text_b64": base64.b64encode(text).decode(), "dry_run": True}

    def dry_run() -> None:
        with suppress(RunnerError, ErrorResponse, OSError):
            daemon.client.post("/v1/apply", body)

    for thread in [threading.Thread(target=dry_run, daemon=True) for _ in range(45)]:
        thread.start()
    short = program(daemon, "short", ["/bin/true"])
    late = program(daemon, "late", ["/bin/true"], queue={"not_before": "2099-01-01T00:00:00+00:00"})
    for _ in range(ROUNDS):
        assert daemon.client.jobs()
        cancelled_job(daemon, late)
        small_job(daemon, short)
    for job_id in left_by:
        daemon.ends(job_id)
    daemon.client.act(changed, "cancel", {})
    daemon.ends(changed)
    pid = daemon.daemon_pid()
    os.kill(pid, 15)
    until(lambda: daemon.pid() != pid, "the daemon has stopped", more=daemon.log_tail)
