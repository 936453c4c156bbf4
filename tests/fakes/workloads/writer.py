"""A program that writes to the disk all the time, and what its job must show."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import Json, Service, until

PROGRAM = """
import os, threading
while True:
    with open(os.environ["PLACE"] + "/file", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    threading.Event().wait(0.05)
"""


@contextmanager
def on_a_disk() -> Iterator[Path]:
    """Make a directory that is on a disk, as those of a test run need not be; anybody may write there."""
    place = Path(tempfile.mkdtemp(prefix="runner-writer-", dir="/var/tmp"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def assert_the_rate_is_shown(daemon: Service, place: str, **fields: Any) -> None:
    """Run the program, which writes to a place, and hold ``show`` and ``top`` to what the kernel counted."""
    code = daemon.root / "writer"
    code.mkdir()
    (code / "main.py").write_text(PROGRAM)
    workload = {"kind": "program", "command": ["python3", "main.py"], "code": str(code)}
    resources = {"cpus": 1, "memory": "256MiB"}
    file = daemon.file(
        "writer", workload=workload, resources=resources, environment={"PLACE": place}, **fields
    )
    job_id = daemon.submit(file, end="cancelled")

    def writes() -> Json | None:
        disk: Json | None = daemon.job(job_id)["disk"]
        return disk if disk and disk["written_per_s"] > 0 and disk["written_bytes"] >= 2**20 else None

    disk = until(writes, "the kernel has counted what the program writes", more=daemon.log_tail)
    [shown] = [each for each in daemon.answer("top", "--once", "--json")["jobs"] if each["id"] == job_id]
    assert shown["disk"]["written_bytes"] >= disk["written_bytes"]
    lines = daemon.runner("show", job_id).splitlines()
    assert any(line.startswith("disk\treads ") for line in lines)

    def account() -> Json:
        return dict(daemon.client.get(f"/v1/jobs/{job_id}/account"))

    def is_measured() -> bool:
        used = account()["used"]
        return bool(used["memory_bytes"] and used["cpus"] and used["cpus"]["peak"] > 0)

    until(is_measured, "its memory and its processor time are known", more=daemon.log_tail)
    daemon.runner("cancel", job_id)
    assert daemon.ends(job_id)["disk"] is None
    found = account()
    assert 2**20 < found["used"]["memory_bytes"]["peak"] < found["asked"]["memory_bytes"]
    assert found["used"]["cpus"]["peak"] > 0
    parts = [found["time"][f"{name}_s"] for name in ("work", "waiting", "starting", "saving", "lost")]
    assert sum(parts) == pytest.approx(found["time"]["total_s"], rel=0.01)
    lines = daemon.runner("show", job_id).splitlines()
    assert {"time", "used"} < {line.partition("\t")[0] for line in lines}
