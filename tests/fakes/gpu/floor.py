"""A daemon whose attempts are real containers with the GPUs of a stand-in host.

The engine here has no GPUs: ``tests.fakes.gpu.engine`` plays the vendor's part of it, and says
what was given to which container; containers, kills and control groups are real.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import engine_url
from tests.fakes.daemon.service import Json, service, until
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.gpu.engine import Injector, gpu_engine
from tests.fakes.gpu.hosts import GIB, NvidiaHost, compile_nvml, h100s
from tests.fakes.gpu.site import Site
from tests.fakes.workloads.counter_image import docker_client

DOOR = "engine.sock"
IDLE_BYTES = 600 * 1024**2
LOOK = """\
for node in /dev/nvidia*; do test -e "$node" && echo "node $node"; done
env | grep VISIBLE | sed 's/^/says /'
setsid sleep 601 &
echo ready
exec sleep 600
"""


@dataclass
class Floor(Site):
    """A daemon whose attempts are containers with GPUs."""

    gpu: Injector = field(kw_only=True)
    proxy: EngineProxy = field(kw_only=True)

    def job(self, name: str, gpus: int = 2, **fields: Any) -> str:
        known: dict[str, Any] = {"workload": {"kind": "program", "command": ["/bin/sh", "-c", LOOK]}}
        return self.sleeper(name, gpus, **{**known, "image": "counter", **fields})

    def gpus(self) -> dict[str, Json]:
        """Return the rows of ``runner gpus``, without the time that a command takes to start."""
        self.listed = {each["name"]: each for each in self.daemon.client.get("/v1/devices")["devices"]}
        return self.listed

    def cancel(self, *jobs: str) -> None:
        for job_id in jobs:
            self.daemon.client.act(job_id, "cancel", {})

    def runs(self, job_id: str, attempt: int = 1) -> tuple[str, ...]:
        """Return what a job has, once this attempt of it runs."""
        self.daemon.prints(job_id, "ready", attempt)
        job = self.daemon.reaches(job_id, "running")
        assert job["attempt"] == attempt
        return tuple(job["gpus"])

    def container(self, job_id: str) -> Json:
        """Return what the real engine says of a job's container that runs."""
        [found] = [each for each in self.daemon.containers(job_id) if each["State"]["Running"]]
        return found

    def booked(self) -> dict[str, list[str]]:
        """Return the allocations in the store."""
        with closing(sqlite3.connect(self.daemon.state / "store.db")) as store:
            rows = store.execute("SELECT job_id, devices FROM lendings WHERE ended_at IS NULL").fetchall()
        return {str(job_id): json.loads(devices) for job_id, devices in rows}

    def shown(self) -> dict[str, list[str]]:
        """Return the allocations that ``runner gpus`` shows."""
        found: dict[str, list[str]] = {}
        for each in self.gpus().values():
            for job in each["jobs"]:
                found.setdefault(job["id"], []).append(each["uuid"])
        return found

    def assert_lent_once(self, *jobs: str) -> None:
        """Engine, store and ``runner gpus`` agree on who has what, and nobody has the same."""
        inside = {job_id: self.nodes(self.container(job_id)) for job_id in jobs}
        booked = {job_id: sorted(devices) for job_id, devices in self.booked().items()}
        assert booked == inside
        every = [uuid for devices in booked.values() for uuid in devices]
        assert len(every) == len(set(every)), booked
        until(lambda: {k: sorted(v) for k, v in self.shown().items()} == booked, "runner gpus says the same")
        self.gpu.assert_fair()

    def nodes(self, container: Json) -> list[str]:
        """Return the UUIDs of the GPUs whose nodes a real container was given."""
        given = {each["PathInContainer"] for each in container["HostConfig"]["Devices"]}
        assert given == {self.gpu.node(card.uuid) for card in self.host.cards} & given
        return sorted(card.uuid for card in self.host.cards if self.gpu.node(card.uuid) in given)

    def use(self, uuid: str, *pids: int) -> None:
        """Let processes have memory on a device."""
        procs = ",".join(f"{pid}:{4 * GIB}" for pid in pids) or None
        self._card(uuid).say(procs=procs, used=IDLE_BYTES + 4 * GIB * len(pids))
        self.say()

    def linger(self, uuid: str, used: int = 20 * GIB) -> None:
        """Let memory be in use on a device that no process owns, as just after an end."""
        self._card(uuid).say(procs=None, used=used)
        self.say()

    def _card(self, uuid: str) -> Any:
        [card] = [card for card in self.host.cards if card.uuid == uuid]
        return card

    def lingers(self, uuid: str) -> None:
        """Return once a look has found memory in use on a device that nobody has."""
        label = self.label(uuid)

        def look() -> bool:
            found = self.gpus()[label]
            return found["state"] == "dirty" and "GiB in use by no process" in found["reason"]

        until(look, f"{label} is dirty", more=lambda: f"{self.listed}\n{self.daemon.log_tail()}")

    def label(self, uuid: str) -> str:
        return next(name for name, each in self.gpus().items() if each["uuid"] == uuid)

    def on(self, uuid: str) -> list[Json]:
        """Return the processes that a device is known to have."""
        return list(self.gpus()[self.label(uuid)]["processes"])

    def alarms(self, job_id: str) -> list[str]:
        return [each["text"] for each in self.daemon.events(job_id) if each["kind"] == "alarm"]

    def enter(self, job_id: str, *command: str) -> int:
        """Start one more program inside a job's container, and return its process on this host."""
        with docker_client(self.daemon.engine) as client:
            made = client.api.exec_create(self.container(job_id)["Id"], command)
            client.api.exec_start(made["Id"], detach=True)
            return int(until(lambda: client.api.exec_inspect(made["Id"])["Pid"], "it has begun"))

    def pids(self, job_id: str) -> list[int]:
        """Return the processes of a job's container on this host, by what the engine says."""
        with docker_client(self.daemon.engine) as client:
            listed = client.api.top(self.container(job_id)["Id"])
        return sorted(int(each[listed["Titles"].index("PID")]) for each in listed["Processes"])

    def assert_all_free(self) -> None:
        """Every device can be lent again, and no container is left."""
        until(lambda: not self.daemon.containers(), "no container is left")
        for name in list(self.gpus()):
            self.reaches(name, "free")
        assert self.booked() == {}
        self.gpu.assert_fair()


@contextmanager
def doors(directory: Path, host: NvidiaHost) -> Iterator[tuple[EngineProxy, Injector]]:
    """A door where any request can be caught, before one that hands out GPUs, before the real engine."""
    real = Path(engine_url().removeprefix("unix://"))
    with gpu_engine(directory / "gpus.sock", real, host) as gpu:
        proxy = EngineProxy(directory / DOOR, directory / "gpus.sock")
        try:
            yield proxy, gpu
        finally:
            proxy.close()


@contextmanager
def floor(directory: Path, image: str, gpus: int = 4, **settings: object) -> Iterator[Floor]:
    """A daemon with some GPUs."""
    library, said, host = compile_nvml(directory / "driver"), directory / "host", h100s(gpus)
    host.write(said)
    known = {
        "watch_every_s": 0.2,
        "clean_within_s": 30,
        "allowed_images": {"counter": image},
        "gpu_injection": "cdi",
        **settings,
    }
    door = f"unix://{directory / DOOR}"
    with (
        doors(directory, host) as (proxy, gpu),
        service(executor="docker", **{"engine": door, **known}) as made,
    ):
        made.env.update(LD_LIBRARY_PATH=str(library), RUNNER_FAKE_NVML=str(said))
        here = Floor(made.start(), host, said, gpu=gpu, proxy=proxy)
        for number in range(gpus):
            here.reaches(f"GPU-{number}", "free")
        yield here
