"""Containers on nodes: which walls an attempt has there, and what its node completes."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.adapters.slurm.containers import NodeContainers
from runner.adapters.slurm.images import SCHEMA, UnpackedImages
from runner.adapters.slurm.oci import NodeSettings
from runner.core.ports.executor import BatchRequest, GpuRequest, Key, LaunchRequest, Limits
from runner.core.ports.users import Owner

LIMITS = Limits(1.0, 2**28)


@pytest.fixture
def request_(tmp_path: Path) -> LaunchRequest:
    run_dir = tmp_path / "1"
    log = run_dir / "attempts/1/log.txt"
    return LaunchRequest(
        Key("i1", "1", 1), "tiny", Owner(7, 7, "ada"), "sha256:" + "a" * 64, ("true",), run_dir, log, LIMITS
    )


def containers(tmp_path: Path, *, shares_network: bool = False) -> NodeContainers:
    place = tmp_path / "images" / f"{'a' * 16}-{SCHEMA}"
    (place / "rootfs").mkdir(parents=True)
    (place / "environment.json").write_text("[]")
    images = UnpackedImages(tmp_path / "images")
    return NodeContainers("i1", images, NodeSettings(), shares_network=shares_network)


@pytest.mark.parametrize(
    ("outbound", "offered", "shared"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_job_has_the_network_of_its_node_if_it_may_reach_the_outside(
    tmp_path: Path, request_: LaunchRequest, *, outbound: bool, offered: bool, shared: bool
) -> None:
    request = replace(request_, batch=BatchRequest(LIMITS, outbound=outbound))
    bundle = containers(tmp_path, shares_network=offered).bundle(request)
    kinds = [each["type"] for each in bundle["linux"]["namespaces"]]
    assert ("network" not in kinds) is shared


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_node_completes_the_configuration_of_a_job_with_cards(
    tmp_path: Path, request_: LaunchRequest, vendor: str
) -> None:
    made, bundle = containers(tmp_path), Path("/b c")
    plain = made.program(replace(request_, batch=BatchRequest(LIMITS)), bundle)
    assert "python3" not in plain
    request = replace(request_, batch=BatchRequest(LIMITS, GpuRequest(2, vendor=vendor)))
    script = made.program(request, bundle)
    completes = f"python3 '/b c'/devices {vendor} \"$state/config.json\" /etc/cdi /var/run/cdi || exit 126"
    assert completes in script.splitlines()
    assert '--config "$state/config.json"' in script
