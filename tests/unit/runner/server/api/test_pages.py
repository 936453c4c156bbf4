"""Answers that do not grow with what waits: pages of jobs, a limited overview, metrics that parse nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.client.client import Client
from runner.client.http import Query
from runner.control.job_views import FirstOfArrays
from runner.core.job.revision_text import RevisionText
from runner.core.scheduler.snapshot import JobArray, PendingJob, ResourceRequest
from runner.server.api import jobs, overview, status
from runner.server.api.metrics import MetricSample
from tests.unit.runner.server.api.test_jobs import JOB, Site, wait_until

MATRIX = JOB + "resources: {cpus: 4}\nmatrix: {values: {seed: [1, 2, 3, 4, 5]}}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    status.attach(site.app, site.service, dict, lambda _: None)
    yield site
    site.service.daemon.stop()


class LocalClient(Client):
    """A client that asks the application itself."""

    def __init__(self, site: Site) -> None:
        self.site, self.asked = site, list[dict[str, Any]]()

    def get(self, path: str, query: Query | None = None, wait_s: float = 0.0) -> Any:
        del wait_s
        query = query or {}
        self.asked.append(dict(query))
        given = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
        return self.site.ask("GET", f"{path.removeprefix('/v1')}?{given}").json()


def test_a_list_comes_in_pages_and_each_names_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    site.submit(MATRIX)
    first = site.ask("GET", "/jobs").json()
    assert ([each["id"] for each in first["jobs"]], first["next"]) == (["5", "4"], 4)
    second = site.ask("GET", f"/jobs?cursor={first['next']}").json()
    assert ([each["id"] for each in second["jobs"]], second["next"]) == (["3", "2"], 2)
    last = site.ask("GET", f"/jobs?cursor={second['next']}&limit=1000000").json()
    assert ([each["id"] for each in last["jobs"]], last["next"]) == (["1"], None)


def test_the_pages_of_a_label_hold_jobs_with_the_label_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 1)
    site.submit(MATRIX)
    page = site.ask("GET", "/jobs?label=seed=4").json()
    assert [each["id"] for each in page["jobs"]] == ["4"]
    assert site.ask("GET", f"/jobs?label=seed=4&cursor={page['next']}").json()["jobs"] == []


def test_the_client_follows_the_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    site.submit(MATRIX)
    client = LocalClient(site)
    assert [job["id"] for job in client.jobs(everything=True)] == ["5", "4", "3", "2", "1"]
    assert len(client.asked) == 4  # three pages of those that have not ended, one of the others
    assert [job["id"] for job in client.jobs(everything=True, limit=3)] == ["5", "4", "3"]
    assert [job["id"] for job in client.jobs(everything=True, limit=2)] == ["5", "4"]


def test_a_list_has_every_unfinished_job_and_the_newest_of_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    monkeypatch.setattr("runner.client.client.ENDED", 2)
    site.submit(MATRIX)
    client = LocalClient(site)
    for ended, listed, more in (
        ((), "5 4 3 2 1", False),
        ((2, 5), "5 4 3 2 1", False),
        ((4,), "5 4 3 1", True),
    ):
        for number in ended:
            site.ask("POST", f"/jobs/{number}/cancel")
        assert [job["id"] for job in client.jobs()] == listed.split()
        assert client.more is more
    assert [job["id"] for job in client.jobs(ended=False)] == ["3", "1"]
    assert [job["id"] for job in client.jobs(limit=9)] == ["5", "4", "3", "2", "1"]


def test_an_overview_lists_so_many_jobs_and_counts_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MAX_IDLE", 2)
    site.submit(MATRIX)
    for number in range(1, 6):
        site.ask("POST", f"/jobs/{number}/hold")
    tracked = site.service.daemon.tracked_jobs
    wait_until(lambda: {each.row.job.state.kind for each in tracked.values()} == {"held"} or None)
    site.app.state.overviews._cached = None
    assert len(site.ask("GET", "/overview").json()["jobs"]) == 2


def test_the_metrics_parse_no_job_file(site: Site) -> None:
    site.submit(MATRIX)
    tracked = site.service.daemon.tracked_jobs
    wait_until(lambda: len(site.service.daemon.scheduler.jobs.pending) == 4 or None)
    rows = [replace(each.row, text=RevisionText.of("no JSON")) for each in tracked.values()]
    samples = list(site.app.state.metrics._job_samples(rows))
    assert MetricSample("runner_queue_jobs", 4, ("normal",)) in samples


def test_the_first_job_of_an_array_without_an_image_is_known_without_a_search() -> None:
    def job(number: int) -> PendingJob:
        return PendingJob(str(number), "ann", ResourceRequest(1, 1), 0.0, array=JobArray("9"))

    preparing: dict[str, PendingJob] = {}
    arrays = FirstOfArrays()
    for number in (12, 9, 10):
        preparing[str(number)] = job(number)
        arrays.update(None, job(number), preparing)
    firsts = []
    for number in (10, 9, 12):
        firsts.append(arrays.first["9"].job_id)
        del preparing[str(number)]
        arrays.update(job(number), None, preparing)
    assert firsts == ["9", "9", "12"]
    assert arrays.first == {}
