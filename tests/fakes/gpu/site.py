"""A stand-in host behind a real daemon, and somebody else's process on it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.gpu.hosts import NvidiaHost, compile_nvml

NOBODY = 65534


@dataclass
class Site:
    """A daemon on a machine whose driver says what a test says."""

    daemon: Service
    host: NvidiaHost
    said: Path
    listed: dict[str, Json] = field(default_factory=dict)

    def say(self) -> None:
        """Let the driver say what the host is now."""
        self.host.write(self.said)

    def gpus(self) -> dict[str, Json]:
        found = self.daemon.client.get("/v1/devices", {})["devices"]
        self.listed = {each["name"]: each for each in found}
        return self.listed

    def reaches(self, name: str, state: str) -> Json:
        """Return a device once it is in this state."""

        def look() -> bool:
            return self.gpus().get(name, {}).get("state") == state

        until(look, f"{name} is {state}", more=lambda: f"{self.listed}\n{self.daemon.log_tail()}")
        return self.listed[name]

    def sleeper(self, name: str, gpus: int = 1, **fields: Any) -> str:
        known: dict[str, Any] = {
            "workload": {"kind": "program", "command": ["sleep", "600"]},
            "accelerator": "cuda",
            "resources": {"cpus": 1, "memory": "256MiB", "gpus": gpus},
            "stop_grace": "1s",
            "retry": {"backoff": "0s"},
        }
        return self.daemon.submit(self.daemon.file(name, **{**known, **fields}), end="cancelled")

    def first_pid(self, job_id: str) -> int:
        """Return the program of a running attempt."""
        [child] = (self.daemon.state / "processes").glob(f"runner-*-{job_id}-1/child")
        return int(child.read_text().splitlines()[1].split()[0])


@contextmanager
def site(tmp_path: Path, host: NvidiaHost, **settings: object) -> Iterator[Site]:
    library, said = compile_nvml(tmp_path / "driver"), tmp_path / "host"
    host.write(said)
    known = {"executor": "process", "watch_every_s": 0.2, "clean_within_s": 5}
    with service(**{**known, **settings}) as made:
        made.env.update(LD_LIBRARY_PATH=str(library), RUNNER_FAKE_NVML=str(said))
        yield Site(made.start(), host, said)


@contextmanager
def stranger() -> Iterator[int]:
    """A process that no job of ours has, of another user where that can be."""
    drop = ["setpriv", "--reuid", str(NOBODY), "--clear-groups"] if os.geteuid() == 0 else []
    with subprocess.Popen([*drop, "sleep", "600"], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()
