"""Reports of a training about itself are part of the answer about its job."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.contract import Effective, OperatorTime, Phase, Status, TraceSummary, dump
from runner.core.ports.disk import DiskCounters, DiskRates
from runner.core.scheduler.config import SchedulingOrder, SwitchingConfig
from runner.server.api.metrics import MetricsCollector
from runner.server.api.overview import OverviewCache
from runner.server.api.reported import epochs
from runner.services.monitor.monitor import UtilizationMonitor
from tests.unit.runner.server.api.test_jobs import Site, site  # noqa: F401  found by name


def effective(**said: Any) -> Effective:
    return Effective(
        device="cpu",
        device_name="cpu",
        precision="fp32",
        threads=1,
        micro_batch=4,
        accumulation=4,
        **said,
    )


def status(**said: Any) -> Status:
    return Status(phase=Phase.TRAIN, time=1.0, step=60, **said)


def test_a_job_that_reports_nothing_has_neither_epochs_nor_advice(site: Site) -> None:  # noqa: F811
    site.submit()
    found = site.until("running")
    assert (found["epochs"], found["advice"]) == (None, [])


def test_a_job_has_the_epochs_and_the_advice_of_its_newest_attempt(site: Site) -> None:  # noqa: F811
    site.submit()
    site.until("running")
    place = site.attempt_dir()
    (place / "effective.json").write_text(
        dump(effective(steps_per_epoch=40, advice=("a larger\nmicro-batch would fit",)))
    )
    (place / "status.json").write_text(dump(status(total_steps=200, step_s=0.5)))
    found = site.job()
    assert found["epochs"] == {"steps_per_epoch": 40, "done": 1.5, "total": 5.0, "epoch_s": 20.0}
    assert found["advice"] == ["attempt 1: a larger\\nmicro-batch would fit"]


def test_a_job_has_the_newest_trace_of_its_attempts(site: Site) -> None:  # noqa: F811
    site.submit()
    site.until("running")
    assert site.job()["trace"] is None
    slow = OperatorTime(name="aten::mm", calls=4, cpu_s=0.5, device_s=0.0)
    made = TraceSummary(first_step=3, last_step=5, seconds=0.25, file="t.gz", operators=(slow,))
    (site.attempt_dir() / "trace.json").write_text(dump(made))
    assert site.job()["trace"] == {
        "attempt": 1,
        "first_step": 3,
        "last_step": 5,
        "seconds": 0.25,
        "file": "t.gz",
        "operators": [{"name": "aten::mm", "calls": 4, "cpu_s": 0.5, "device_s": 0.0}],
    }
    (site.attempt_dir() / "trace.json").write_text("[")
    assert site.job()["trace"] is None


def test_the_disk_rates_of_a_running_job_are_shown_and_measured(site: Site) -> None:  # noqa: F811
    site.submit()
    site.until("running")
    assert site.job()["disk"] is None
    context = site.service.daemon.context
    rates = DiskRates(2048.0, 512.0, DiskCounters(9000, 800))
    context.disk.current = {context.key("1", 1): rates}
    known = {"read_per_s": 2048.0, "written_per_s": 512.0, "read_bytes": 9000, "written_bytes": 800}
    assert site.job()["disk"] == known
    monitor = UtilizationMonitor(site.service)
    overviews = OverviewCache(site.service, dict, lambda _row: None, monitor)
    [shown] = overviews.now()["jobs"]
    assert shown["disk"] == known
    lines = MetricsCollector(overviews, monitor).text().decode().splitlines()
    assert 'runner_disk_bytes_per_second{direction="read"} 2048.0' in lines
    assert 'runner_disk_bytes_per_second{direction="write"} 512.0' in lines
    site.complete()
    assert site.until("finished")["disk"] is None


def test_the_limits_of_giving_way_are_metrics_where_jobs_give_way(site: Site) -> None:  # noqa: F811
    monitor = UtilizationMonitor(site.service)
    overviews = OverviewCache(site.service, dict, lambda _row: None, monitor)
    assert "switching" not in MetricsCollector(overviews, monitor).text().decode()
    of_site = site.service.daemon.context.site
    switching = SwitchingConfig((3600.0, 7200.0), budget=0.05)
    of_site.rules = replace(of_site.rules, order=SchedulingOrder.ATTAINED, switching=switching)
    lines = MetricsCollector(overviews, monitor).text().decode().splitlines()
    assert "runner_queue_switching_budget_ratio 0.05" in lines
    assert "runner_queue_switching_left_device_seconds 0.0" in lines
    assert 'runner_queue_service_level_device_seconds{level="2"} 7200.0' in lines


@pytest.mark.parametrize(
    ("effective", "status", "expected"),
    [
        (None, status(), None),
        (effective(), status(), None),
        (effective(steps_per_epoch=20), None, None),
        (
            effective(steps_per_epoch=20),
            status(),
            {"steps_per_epoch": 20, "done": 3.0, "total": None, "epoch_s": None},
        ),
    ],
)
def test_what_is_not_known_is_null(
    effective: Effective | None, status: Status | None, expected: dict[str, Any] | None
) -> None:
    assert epochs(effective, status) == expected
