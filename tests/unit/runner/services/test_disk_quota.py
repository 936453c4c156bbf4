"""Limits in force, and the messages about an exceeded one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.job.events import CancelRequested, ReleaseRequested
from runner.core.ports.disk_use import DiskUse
from runner.files.settings.disk_quota import DiskQuotaSettings
from runner.services.disk_quota import NO_LIMIT, SHARED_FILES_PER_JOB, DiskQuotas, excess, limits_of
from tests.fakes.host.machine import Host

LIMIT = DiskUse(4096, 3)


class Sizes(dict[str, int]):
    """The run directories, by the GiB that each has; each takes a second to measure."""

    host: Host

    def quotas(self, host: Host, **limits: str) -> DiskQuotas:
        """Return the quotas of a host that has these directories."""
        self.host = host
        service: Any = SimpleNamespace(
            settings=SimpleNamespace(
                disk_quota=DiskQuotaSettings.model_validate(limits), serves_all_users=False
            ),
            daemon=host.daemon,
            store=host.store,
            queries=SimpleNamespace(current=host.row),
            clock=host.clock,
        )
        return DiskQuotas(service, self)

    def ids(self) -> tuple[str, ...]:
        return tuple(self)

    def use(self, job_id: str, _most: DiskUse) -> DiskUse:
        self.host.clock.forward(1)
        return DiskUse(self[job_id] * 2**30, 1)


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


def test_what_was_removed_of_a_job_that_has_ended_does_not_count_against_its_owner(host: Host) -> None:
    ended, runs = host.submit("ended"), host.submit("runs")
    host.settle()
    host.context.end(host.key(ended), 0)
    host.settle()
    sizes = Sizes({ended: 45, runs: 4})
    quotas = sizes.quotas(host, bytes_per_user="50GiB")
    quotas.look()
    sizes.update({ended: 1, runs: 20})
    host.clock.forward(3600)
    quotas.look()
    assert host.state(runs) == "running"
    sizes[runs] = 60
    host.clock.forward(3600)
    quotas.look()
    assert host.state(runs) == "stopping"


def test_what_a_job_saves_after_it_was_asked_to_stop_counts_against_its_owner(host: Host) -> None:
    stops, runs = host.submit("stops"), host.submit("runs")
    host.settle()
    sizes = Sizes({stops: 10, runs: 10})
    quotas = sizes.quotas(host, bytes_per_user="50GiB")
    host.daemon.apply_event(host.row(stops), CancelRequested(host.clock.now(), "ann"))
    quotas.look()
    sizes[stops] = 45
    host.settle()
    assert host.state(stops) == "finished"
    quotas.look()
    assert host.state(runs) == "stopping"


def test_a_released_job_is_not_held_for_what_it_had_while_it_stopped(host: Host) -> None:
    job, other = host.submit("job"), host.submit("other")
    host.settle()
    sizes = Sizes({job: 60, other: 1})
    quotas = sizes.quotas(host, bytes_per_job="50GiB", bytes_per_user="1000GiB")
    quotas.look()
    assert host.state(job) == "stopping"
    quotas.look()
    host.settle()
    assert host.state(job) == "held"
    sizes[job] = 5
    host.daemon.apply_event(host.row(job), ReleaseRequested(host.clock.now(), "ann"))
    host.settle()
    quotas.look()
    assert host.state(job) == "running"
