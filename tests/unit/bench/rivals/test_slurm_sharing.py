"""Set-up of a node of Slurm for sharing."""

from pathlib import Path

import pytest

from bench.rivals.slurm import ClusterConfig, Ports, render_configuration
from bench.rivals.slurm_sharing import CREDENTIAL_S, WAYS, Way


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_a_way_to_share_is_a_configuration_with_its_partitions_alone(way: Way) -> None:
    config = ClusterConfig(4, "UP", way.settings, way.partitions, CREDENTIAL_S)
    lines = render_configuration(Path("/bench/rival"), "somebody", Ports(10001, 10002), config).splitlines()
    assert tuple(line for line in lines if line.startswith("PartitionName=")) == way.partitions
    assert set(way.settings) < set(lines)
    assert f"AuthInfo=socket=/bench/rival/munge/socket,cred_expire={CREDENTIAL_S}" in lines
    assert len(way.partitions) == 1 + way.declared
    assert sum("Default=YES" in line for line in way.partitions) == 1
