"""The walls of a container that a job of Slurm starts on its node, as an ordinary user."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.ports.executor import (
    Alive,
    BatchOptions,
    BatchRequest,
    GpuRequest,
    LaunchRequest,
    Mount,
)
from tests.contract.worlds import LIMITS, NOBODY, Place, end, eventually, seen, slurm_place

pytestmark = pytest.mark.engine

LOOKS = """\
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/self/status
touch /written 2>&1
echo "interfaces: $(ls /sys/class/net | tr '\\n' ' ')"
ls /data/private 2>&1
echo "devices: $(env | grep -c 'VISIBLE_DEVICES=.*[0-9]')"
"""


@pytest.fixture(scope="module")
def place(slurm_conf: str, engine: str, base_image: str) -> Iterator[Place]:
    with slurm_place(slurm_conf, engine, base_image) as place:
        yield place


@pytest.mark.skipif(os.geteuid() != 0, reason="a directory of another user needs root")
def test_a_container_on_a_node_has_no_privilege_no_network_and_no_file_of_others(place: Place) -> None:
    private = place.root / "private"
    private.mkdir(mode=0o700)
    request = place.request("/bin/sh", "-c", LOOKS, job="walls")
    request = replace(request, mounts=(Mount(private, Path("/data/private")),))
    executor = place.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    said = request.log.read_text()
    assert f"Uid:\t{NOBODY.uid}\t" in said
    assert "CapEff:\t0000000000000000\n" in said
    assert "NoNewPrivs:\t1\n" in said
    assert "Seccomp:\t2\n" in said
    assert "/written" in said
    assert "Read-only file system" in said
    assert "interfaces: lo \n" in said
    assert "Permission denied" in said
    assert "devices: 0\n" in said


# --- Cards of a made-up specification, whose nodes are those that Slurm fences

SEES = """\
ls /dev | grep '^nvidia' | tr '\\n' ' '; echo "$RUNNER_TEST_CARDS"
cat $LD_LIBRARY_PATH/libcuda.so.1
echo "opens: $(cat /dev/nvidia[0-9] 2>&1 | grep -c 'not permitted')"
while [ ! -e /job/go ]; do sleep 0.1; done
"""


def write_specification(place: Place, gres: Path) -> None:
    """Write the specification of a node with two cards, as ``nvidia-ctk`` does, and a driver."""
    driver, cdi = place.root / "driver", place.root / "cdi"
    driver.mkdir(mode=0o755)
    cdi.mkdir(mode=0o755)
    (driver / "libcuda.so.580.1").write_text("the driver\n")
    (driver / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    library = {"hostPath": str(driver / "libcuda.so.580.1"), "containerPath": "/usr/lib64/libcuda.so.580.1"}
    devices = [
        {
            "name": str(number),
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/nvidia{number}", "hostPath": str(gres / f"gpu{number}")}],
                "env": [f"RUNNER_TEST_CARDS=card {number}"],
            },
        }
        for number in (0, 1)
    ]
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["update-ldcache"]}
    everywhere = {
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/null"}],
        "mounts": [library],
        "hooks": [hook],
    }
    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": everywhere,
    }
    (cdi / "nvidia.json").write_text(json.dumps(content))
    for each in (driver / "libcuda.so.580.1", cdi / "nvidia.json"):
        each.chmod(0o644)


def test_a_container_on_a_node_sees_exactly_the_cards_of_its_job(place: Place, slurm_conf: str) -> None:
    write_specification(place, Path(slurm_conf).parent / "gpus")
    executor, requests = place.executor(), []
    batch = BatchRequest(LIMITS, GpuRequest(1), BatchOptions(constraint="fast"))
    for job in ("card-a", "card-b"):
        request: LaunchRequest = replace(place.request("/bin/sh", "-c", SEES, job=job), batch=batch)
        executor.launch(request)
        requests.append(request)
    given = []
    for request in requests:
        eventually(lambda request=request: request.log.exists() and "opens: " in request.log.read_text())  # type: ignore[misc]
        alive = seen(executor, request.key)
        assert isinstance(alive, Alive)
        [card] = (each.removeprefix("gpu:") for each in alive.devices)
        assert request.log.read_text().splitlines() == [
            f"nvidia{card} nvidiactl card {card}",
            "the driver",
            "opens: 0",
        ]
        given.append(card)
    assert sorted(given) == ["0", "1"]
    for request in requests:
        (request.run_dir / "go").touch()
        assert end(executor, request.key).exit_code == 0
