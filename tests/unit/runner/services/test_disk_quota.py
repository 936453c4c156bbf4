"""Limits in force, and the messages about an exceeded one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.ports.disk_use import DiskUse
from runner.files.settings.disk_quota import DiskQuotaSettings
from runner.services.disk_quota import NO_LIMIT, SHARED_FILES_PER_JOB, DiskQuotas, excess, limits_of
from tests.fakes.host.machine import Host

LIMIT = DiskUse(4096, 3)


def test_only_a_daemon_of_all_users_limits_files_unless_the_settings_do() -> None:
    assert limits_of(DiskQuotaSettings(), shared=False) == (NO_LIMIT, NO_LIMIT)
    of_job, of_user = limits_of(DiskQuotaSettings(), shared=True)
    assert (of_job.files, of_user) == (SHARED_FILES_PER_JOB, NO_LIMIT)
    assert limits_of(DiskQuotaSettings(files_per_job=7), shared=True)[0].files == 7


@pytest.mark.parametrize(
    ("use", "fact"),
    [
        (DiskUse(4096, 3), None),
        (DiskUse(4097, 3), "it has more than 4KiB (disk_quota.bytes_per_job)"),
        (DiskUse(4097, 4), "it has more than 3 files (disk_quota.files_per_job)"),
    ],
)
def test_what_is_exceeded_is_named_with_its_setting(use: DiskUse, fact: str | None) -> None:
    assert excess(use, LIMIT, "it has", "job") == (fact and f"{fact}; remove some, then release it")


def test_a_user_with_many_large_directories_takes_no_larger_part_of_the_time(host: Host) -> None:
    """Each takes 3 s to measure: one is measured again after a minute, each of two after two minutes."""
    measured: list[str] = []

    def use(job_id: str, _most: DiskUse) -> DiskUse:
        host.clock.forward(3)
        measured.append(job_id)
        return DiskUse()

    service: Any = SimpleNamespace(
        settings=SimpleNamespace(disk_quota=DiskQuotaSettings(), serves_all_users=True),
        daemon=host.daemon,
        clock=host.clock,
    )
    quotas = DiskQuotas(service, cast("Any", SimpleNamespace(use=use)))
    jobs = [host.submit("one"), host.submit("two")]
    host.settle()
    quotas.look()
    host.clock.forward(70)
    quotas.look()
    assert measured == jobs
    host.clock.forward(60)
    quotas.look()
    assert measured == [*jobs, *jobs]
