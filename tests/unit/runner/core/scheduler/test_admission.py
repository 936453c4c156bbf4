from dataclasses import replace

import pytest

from runner.core.scheduler.admission import RefusalReason, check_admission
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig
from runner.core.scheduler.snapshot import (
    GIB,
    DeviceKind,
    DeviceState,
    Host,
    PendingJob,
    ResourceRequest,
    SchedulableDevice,
    Snapshot,
)
from tests.fakes.host.directories import NOW_S, devices, gpus, host, out, waiting

SITE = Snapshot(NOW_S, (host(4), Host("cpu", 64, 16 * GIB)))


def refused(job: PendingJob, site: Snapshot = SITE) -> list[str]:
    return [refusal.text for refusal in check_admission(job, site)]


def test_a_job_that_fits_into_the_empty_site_may_wait_however_full_it_is() -> None:
    assert refused(waiting("1", gpus(4, linked=True))) == []
    broken = replace(SITE, hosts=(host(own=[out(device, DeviceState.QUARANTINED) for device in devices(4)]),))
    assert refused(waiting("1", gpus(4)), broken) == []


def test_more_devices_than_are_together_are_refused_with_how_many_are() -> None:
    assert refused(waiting("1", gpus(5))) == [
        "the request is for 5 GPUs; at most 4 such devices are together on a host"
    ]
    own = tuple(SchedulableDevice(f"{i}", f"GPU-{i}", link_group=f"i{i // 2}") for i in range(4))
    site = replace(SITE, hosts=(host(own=own),))
    assert refused(waiting("1", gpus(3, linked=True)), site) == [
        "the request is for 3 linked GPUs; at most 2 such devices are together on a host"
    ]


def test_unknown_models_are_refused_with_what_there_is() -> None:
    assert refused(waiting("1", ResourceRequest(gpus=1, models=("B200",)))) == [
        "no device matches the request for 1 GPU (B200); there are 4 NVIDIA H100 80GB HBM3 (whole, 80 GiB)"
    ]
    nothing = replace(SITE, hosts=(Host("cpu", 1, GIB),))
    assert refused(waiting("1", gpus(1)), nothing) == [
        "no device matches the request for 1 GPU; there are none"
    ]


def test_processors_and_memory_that_no_host_has_are_refused() -> None:
    (said,) = refused(waiting("1", ResourceRequest(64, 32 * GIB)))
    assert said.startswith(
        "the request is for 64 cpus and 32 GiB of memory; no host has both; the most that one has is 64 cpus"
    )
    assert "no host with such devices has both" in refused(waiting("1", ResourceRequest(64, GIB, 1)))[0]


def test_an_unknown_class_is_refused_with_those_there_are() -> None:
    assert refused(waiting("1", priority_class="best")) == [
        "there is no class best; there are idle, normal, interactive, urgent"
    ]


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (Quota(devices=0), "user ada may have 0 devices at a time, and this job asks for 1"),
        (Quota(jobs=0), "user ada may have no job running"),
        (Quota(queued=1), "user ada may have 1 job waiting, and has 1"),
    ],
)
def test_quotas_that_can_never_be_met_are_told(quota: Quota, said: str) -> None:
    site = replace(SITE, config=SchedulerConfig(quotas=Quotas(user=quota)), pending=(waiting("0"),))
    assert refused(waiting("1"), site) == [said]
    assert (
        refused(
            waiting("1", owner="bob"),
            replace(site, config=SchedulerConfig(quotas=Quotas(users={"ada": quota}))),
        )
        == []
    )


def test_quotas_of_groups_are_told_too() -> None:
    site = replace(SITE, config=SchedulerConfig(quotas=Quotas(group=Quota(devices=1))))
    assert refused(replace(waiting("1", gpus(2)), group="lab"), site) == [
        "group lab may have 1 device at a time, and this job asks for 2"
    ]
    assert refused(waiting("1", gpus(2)), site) == []


@pytest.mark.parametrize(
    ("needs", "about"),
    [
        (ResourceRequest(gpus=1, vendor="amd"), RefusalReason.COUNT),
        (gpus(5), RefusalReason.COUNT),
        (ResourceRequest(gpus=1, kind=DeviceKind.SLICE, models=("B200",)), RefusalReason.KIND),
        (ResourceRequest(gpus=1, models=("B200",), device_bytes=800 * GIB), RefusalReason.MODEL),
        (
            ResourceRequest(gpus=1, models=("h100",), device_bytes=81 * GIB, capability=(10, 0)),
            RefusalReason.MEMORY,
        ),
        (ResourceRequest(gpus=1, models=("h100",), capability=(10, 0)), RefusalReason.CAPABILITY),
        (ResourceRequest(cpus=65), RefusalReason.HOST),
    ],
)
def test_a_refusal_names_the_condition_that_no_device_meets(
    needs: ResourceRequest, about: RefusalReason
) -> None:
    assert [refusal.reason for refusal in check_admission(waiting("1", needs), SITE)] == [about]


def test_jobs_that_are_submitted_together_count_together() -> None:
    site = replace(SITE, config=SchedulerConfig(quotas=Quotas(user=Quota(queued=3))), pending=(waiting("0"),))
    assert check_admission(waiting("1"), site, 2) == ()
    (refusal,) = check_admission(waiting("1"), site, 3)
    assert (refusal.reason, refusal.text) == (
        RefusalReason.QUOTA,
        "user ada may have 3 jobs waiting, and has 1; this submission has 3",
    )


def test_a_class_limits_what_each_user_has_in_it() -> None:
    shell = waiting("1", gpus(3), priority_class="interactive")
    assert refused(shell) == [
        "user ada in class interactive may have 2 devices at a time, and this job asks for 3"
    ]
    assert refused(waiting("1", gpus(2), priority_class="interactive")) == []
