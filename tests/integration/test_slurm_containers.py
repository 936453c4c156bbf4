"""The walls of a container that a job of Slurm starts on its node, as an ordinary user."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.ports.executor import Mount
from tests.contract.worlds import NOBODY, Place, end, slurm_place

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
