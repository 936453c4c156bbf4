"""The night in which a driver is upgraded below a queue of GPU jobs, on the other host of ``scripts/hosts``.

The cards are played by the compiled NVML, and what gives them to containers by a CDI specification whose
nodes are ``/dev/null``, or by a stand-in for NVIDIA's runtime.  The engine and its refusals are real.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import until
from tests.fakes.gpu.hosts import h100s
from tests.fakes.gpu.site import Site, site

SPECIFICATION = Path("/etc/cdi/nvidia.yaml")
LIBRARIES = Path("/usr/lib/played-driver")
MISMATCH = Path("/run/driver-mismatch")
LOOK = "ls /dev | grep -x 'nvidia[0-9]' && sleep 1"


def install(version: str) -> None:
    """Install a version of the driver, as its package does: the library of the version before is gone."""
    LIBRARIES.mkdir(exist_ok=True)
    for each in LIBRARIES.iterdir():
        each.unlink()
    (LIBRARIES / f"libcuda.so.{version}").write_text("")


def generate(version: str) -> None:
    """Write the specification of a version, as ``nvidia-ctk cdi generate`` does."""
    library = f"libcuda.so.{version}"
    mount = {
        "hostPath": str(LIBRARIES / library),
        "containerPath": f"/usr/lib/{library}",
        "options": ["ro", "bind"],
    }
    nodes = {
        f"GPU-h{number}": [{"path": f"/dev/nvidia{number}", "hostPath": "/dev/null"}] for number in (0, 1)
    }
    specification = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": each}} for name, each in nodes.items()],
        "containerEdits": {"mounts": [mount]},
    }
    SPECIFICATION.parent.mkdir(exist_ok=True)
    SPECIFICATION.write_text(json.dumps(specification))


@pytest.fixture(params=["cdi", "hook"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    assert os.environ.get("RUNNER_OTHER_HOST"), (
        "it writes to /etc and /usr: scripts/hosts runs it, on its own host"
    )
    install("580.65.06")
    if request.param == "cdi":
        generate("580.65.06")
    yield request.param
    SPECIFICATION.unlink(missing_ok=True)
    MISMATCH.unlink(missing_ok=True)


def upgrade(way: str) -> None:
    if way == "cdi":
        install("580.95.05")
    else:
        MISMATCH.touch()


def repair(way: str) -> None:
    if way == "cdi":
        generate("580.95.05")
    else:
        MISMATCH.unlink()


def submitted(here: Site, name: str) -> str:
    fields: dict[str, Any] = {
        "workload": {"kind": "program", "command": ["sh", "-c", LOOK]},
        "image": "plain",
        "accelerator": "cuda",
        "resources": {"cpus": 1, "memory": "64MiB", "gpus": 1},
    }
    return here.daemon.submit(here.daemon.file(name, **fields))


WORDS = {"cdi": "libcuda.so.580.65.06: no such file", "hook": "driver/library version mismatch"}


def test_the_night_of_the_upgrade_fails_no_job(tmp_path: Path, way: str) -> None:
    offered = {"plain": "runner-base:bookworm"}
    with site(tmp_path, h100s(2), executor="docker", allowed_images=offered) as here:
        first = submitted(here, "evening")
        assert here.daemon.ends(first)["outcome"] == "succeeded", here.daemon.told(first)
        [node] = here.daemon.log(first).split()
        assert node in {"nvidia0", "nvidia1"}
        pid = here.daemon.pid
        upgrade(way)
        queue = [submitted(here, f"night-{number}") for number in range(6)]
        for card in ("GPU-0", "GPU-1"):
            assert WORDS[way] in here.reaches(card, "quarantined")["reason"]
        assert {here.daemon.state_of(each) for each in queue} <= {"queued", "preparing"}
        repair(way)
        for each in queue:
            ended = here.daemon.ends(each)
            assert ended["outcome"] == "succeeded", here.daemon.told(each)
            assert len(ended["attempts"]) == 1  # nothing was charged
        assert here.daemon.pid == pid
        until(lambda: {each["state"] for each in here.gpus().values()} == {"free"}, "both cards are free")
