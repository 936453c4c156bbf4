"""Choice of devices for a job."""

from dataclasses import replace

import pytest

from runner.core.scheduler.snapshot import (
    GIB,
    DeviceKind,
    DeviceState,
    Host,
    ResourceRequest,
    SchedulableDevice,
)
from tests.fakes.host.directories import devices, gpus, host, out, planned, running, starts, waiting


def link_groups(*sizes: int) -> Host:
    own = [SchedulableDevice(f"{i}-{j}", f"GPU-{i}{j}", link_group=f"i{i}", numa=j // 2)
           for i, size in enumerate(sizes) for j in range(size)]  # fmt: skip
    return host(own=own)


def test_a_job_gets_linked_devices() -> None:
    assert starts(planned([waiting("1", gpus(2))], [link_groups(1, 2, 1)])) == {"1": ("1-0", "1-1")}


def test_a_small_job_leaves_whole_islands_whole() -> None:
    busy = [running("r", ["1-0"])]
    assert starts(planned([waiting("1", gpus(1))], [link_groups(4, 4)], busy)) == {"1": ("1-1",)}


def test_a_device_without_links_goes_before_one_of_an_island() -> None:
    own = (
        *devices(2),
        SchedulableDevice(
            "x", "GPU-x", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, capability=(9, 0)
        ),
    )
    assert starts(planned([waiting("1", gpus(1))], [host(own=own)])) == {"1": ("x",)}


def test_the_island_with_the_least_left_over_is_chosen() -> None:
    busy = [running("r", ["0-0", "1-0", "1-1"])]
    assert starts(planned([waiting("1", gpus(2))], [link_groups(8, 4)], busy)) == {"1": ("1-2", "1-3")}


def test_devices_of_one_numa_node_go_together() -> None:
    busy = [running("r", ["0-0"])]
    assert starts(planned([waiting("1", gpus(2))], [link_groups(4)], busy)) == {"1": ("0-2", "0-3")}


def test_devices_of_several_numa_nodes_do_when_they_must() -> None:
    busy = [running("r", ["0-0"])]
    assert starts(planned([waiting("1", gpus(3))], [link_groups(5)], busy)) == {"1": ("0-1", "0-2", "0-3")}


def test_a_job_that_needs_no_links_may_span_islands_but_never_vendors() -> None:
    assert starts(planned([waiting("1", gpus(3))], [link_groups(2, 2)])) == {"1": ("0-0", "0-1", "1-0")}
    mixed = host(own=(SchedulableDevice("n", "GPU-n", "nvidia"), SchedulableDevice("a", "GPU-a", "amd")))
    decided = planned([waiting("1", gpus(2))], [mixed])
    assert not decided.starts
    assert decided.pending_reasons["1"].never


def test_devices_of_one_model_go_before_a_mixture_and_a_mixture_before_nothing() -> None:
    own = [
        SchedulableDevice(f"{model}{i}", f"GPU-{model}{i}", model=model)
        for model in ("A100", "H100")
        for i in range(2)
    ]
    assert starts(planned([waiting("1", gpus(2))], [host(own=[own[0], *own[2:]])])) == {
        "1": ("H1000", "H1001")
    }
    assert len(starts(planned([waiting("1", gpus(3))], [host(own=own)]))["1"]) == 3


def test_linked_means_linked() -> None:
    decided = planned([waiting("1", gpus(3, linked=True))], [link_groups(2, 2)])
    assert decided.pending_reasons["1"].why.startswith("never starts: no host has 3 linked GPUs")


def test_the_least_device_that_suffices_is_taken() -> None:
    own = (
        SchedulableDevice("big", "GPU-0", model="H100", memory_bytes=80 * GIB, capability=(9, 0)),
        SchedulableDevice("mid", "GPU-1", model="A100", memory_bytes=40 * GIB, capability=(8, 0)),
        SchedulableDevice("old", "GPU-2", model="V100", memory_bytes=16 * GIB, capability=(7, 0)),
    )
    site = [host(own=own)]
    assert starts(planned([waiting("1", gpus(1))], site)) == {"1": ("old",)}
    assert starts(planned([waiting("1", ResourceRequest(gpus=1, device_bytes=20 * GIB))], site)) == {
        "1": ("mid",)
    }
    assert starts(planned([waiting("1", ResourceRequest(gpus=1, capability=(9, 0)))], site)) == {
        "1": ("big",)
    }
    assert starts(planned([waiting("1", ResourceRequest(gpus=1, models=("h100",)))], site)) == {"1": ("big",)}
    assert starts(planned([waiting("1", ResourceRequest(gpus=1, avoid=frozenset({"old"})))], site)) == {
        "1": ("mid",)
    }


def test_a_slice_is_lent_as_a_slice_and_a_whole_device_as_a_whole() -> None:
    part = SchedulableDevice(
        "m", "MIG-0", model="NVIDIA A100 MIG 1g.10gb", memory_bytes=10 * GIB, kind=DeviceKind.SLICE
    )
    site = [host(own=(part, *devices(1)))]
    queue = [
        waiting("1", ResourceRequest(gpus=1, kind=DeviceKind.SLICE, models=("1g.10gb",))),
        waiting("2", gpus(1)),
    ]
    assert starts(planned(queue, site)) == {"1": ("m",), "2": ("h-0",)}


def test_a_shared_device_is_lent_by_memory() -> None:
    shared = SchedulableDevice(
        "s",
        "GPU-0",
        memory_bytes=80 * GIB,
        kind=DeviceKind.SHARED,
        shareable_bytes=70 * GIB,
        state=DeviceState.ALLOCATED,
    )
    queue = [
        waiting(str(i), ResourceRequest(0, 0, 1, kind=DeviceKind.SHARED, device_bytes=30 * GIB), age_s=9 - i)
        for i in range(3)
    ]
    decided = planned(queue, [host(own=[shared])])
    assert starts(decided) == {"0": ("s",), "1": ("s",)}
    assert decided.pending_reasons["2"].why.startswith(
        "waits for 1 shared GPU with 30 GiB left: 0 free, 1 allocated"
    )


@pytest.mark.parametrize("state", [state for state in DeviceState if state is not DeviceState.FREE])
def test_nothing_but_a_free_device_is_lent(state: DeviceState) -> None:
    site = [host(own=[out(devices(1)[0], state)])]
    decided = planned([waiting("1", gpus(1))], site)
    assert not decided.starts
    assert decided.pending_reasons["1"].why.endswith("start time unknown")


def test_a_lent_device_opens_at_the_end_of_its_job() -> None:
    site = [host(own=[out(devices(1)[0], DeviceState.ALLOCATED)])]
    decided = planned([waiting("1", gpus(1))], site, [running("r", ["h-0"])])
    assert decided.pending_reasons["1"].starts_s == decided.reservations[0].at_s


def test_a_job_without_gpus_goes_where_there_are_none() -> None:
    bare = Host("bare", 4, 8 * GIB)
    decided = planned([waiting("1", ResourceRequest(2, GIB))], [host(), bare])
    assert decided.starts[0].host == "bare"


def test_a_job_on_a_host_that_is_gone_holds_nothing_here() -> None:
    decided = planned([waiting("1", gpus(4))], busy=[replace(running("r", ["x"]), host="gone")])
    assert starts(decided) == {"1": ("h-0", "h-1", "h-2", "h-3")}
