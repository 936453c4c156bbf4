"""Limits in force, and the messages about an exceeded one."""

import pytest

from runner.core.ports.disk_use import DiskUse
from runner.files.settings.disk_quota import DiskQuotaSettings
from runner.services.disk_quota import NO_LIMIT, SHARED_FILES_PER_JOB, excess, limits_of

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
