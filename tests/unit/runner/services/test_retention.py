"""Run directories that the limits do not allow to stay."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.adapters.host.run_directories import HostRunDirectories
from runner.base.errors import Unavailable
from runner.files.settings.model import Settings
from runner.files.settings.retention import RetentionSettings
from runner.server.api.retention import attach
from runner.services import retention
from runner.services.retention import EndedRun, RetentionService, choose
from tests.unit.runner.server.api.test_jobs import ME, Site, wait_until

NOW = datetime(2030, 1, 10, tzinfo=UTC)


def run(job_id: int, hours: float, owner: str = "ann", size: int = 0) -> EndedRun:
    return EndedRun(str(job_id), f"job-{job_id}", owner, NOW - timedelta(hours=hours), size)


def removed(runs: list[EndedRun], **limits: object) -> list[str]:
    return [each.run.job_id for each in choose(runs, RetentionSettings.model_validate(limits), NOW)]


def test_without_limits_all_stay() -> None:
    assert RetentionSettings().is_unlimited
    assert removed([run(1, 9999, size=2**50)]) == []


def test_the_old_ones_go_after_their_age() -> None:
    assert removed([run(2, 47), run(1, 49)], age="2d") == ["1"]


def test_the_oldest_of_each_user_go_when_there_are_too_many() -> None:
    runs = [run(1, 5), run(2, 4), run(3, 3), run(4, 9, "bob")]
    assert removed(runs, count_per_user=2) == ["1"]
    [removal] = choose(runs, RetentionSettings(count_per_user=2), NOW)
    assert removal.why == "ann may have 2 run directories"


def test_the_oldest_go_when_they_take_too_much_and_small_ones_that_fit_stay() -> None:
    gib = 2**30
    runs = [run(1, 5, size=gib // 4), run(2, 4, size=2 * gib), run(3, 3, size=gib // 2)]
    assert removed(runs, bytes_per_user=gib) == ["2"]
    [removal] = choose(runs, RetentionSettings(bytes_per_user=gib), NOW)
    assert removal.why == "ann may have 1GiB of run directories"


def test_what_has_just_ended_stays_whatever_the_limits() -> None:
    assert removed([run(1, 0.5), run(2, 2)], count_per_user=0) == ["2"]


def test_the_oldest_are_removed_first() -> None:
    assert removed([run(3, 60), run(1, 70, "bob"), run(2, 80)], age="1d") == ["2", "1", "3"]


# --- weights that others begin with

BASE = "workload: {kind: causal_lm, data: stdlib}\n"
BEGINS = "workload: {kind: causal_lm, data: stdlib, init_from: job/base/best}\n"
UNFINISHED = {
    "running": "",
    "queued": "resources: {cpus: 4}\n",
    "held": "",
    "with a time to begin": "queue: {not_before: 2099-01-01T00:00:00Z}\n",
    "after another": "queue: {after: [other]}\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def submitted(site: Site, text: str, name: str) -> str:
    answer = site.submit(text, name=name)
    assert answer.status_code == 201, answer.json()
    job_id: str = answer.json()["job"]["id"]
    return job_id


@pytest.mark.parametrize("kind", UNFINISHED)
def test_a_job_keeps_its_weights_until_those_that_begin_with_them_have_ended(
    kind: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "GRACE", timedelta(0))
    monkeypatch.setattr(site.service.live, "value", Settings(retention=RetentionSettings(count_per_user=0)))
    service = RetentionService(site.service, HostRunDirectories(site.directory / "jobs"))
    base = submitted(site, BASE, "base")
    site.until("running", base)
    site.complete(base)
    site.until("finished", base)
    wait_until(lambda: [each.run.job_id for each in service.pending()] == [base] or None)
    other = submitted(site, BASE, "other")
    begins = submitted(site, BEGINS + UNFINISHED[kind], "begins")
    if kind == "held":
        assert site.ask("POST", f"/jobs/{begins}/hold", {}).status_code == 200
    state = {"running": "running", "held": "held"}.get(kind, "queued")
    site.until(state, begins)
    assert service.pending() == []
    for job_id in (begins, other):
        site.ask("POST", f"/jobs/{job_id}/cancel", {})
        site.until("finished", job_id)
    assert base in [removal.run.job_id for removal in service.pending()]


# --- one's own


def pruned(site: Site, uid: int = ME, **body: object) -> tuple[int, list[str]]:
    answer = site.ask("POST", "/prune", body, uid)
    found = answer.json()
    return answer.status_code, [each["job"] for each in found.get("removed", ())]


@pytest.fixture
def pruning(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    def removed(directories: HostRunDirectories, job_id: str) -> None:
        shutil.rmtree(directories.jobs / f".removed-{job_id}")

    monkeypatch.setattr(HostRunDirectories, "remove", removed)  # else by another program
    attach(site.app, RetentionService(site.service, HostRunDirectories(site.directory / "jobs")))
    for name in ("one", "two"):
        job_id = submitted(site, BASE, name)
        site.until("running", job_id)
        site.ask("POST", f"/jobs/{job_id}/cancel", {})
        site.until("finished", job_id)
    return site


def test_users_remove_the_files_of_their_own_ended_jobs(pruning: Site) -> None:
    runs = submitted(pruning, BASE, "runs")
    pruning.until("running", runs)
    wait_until(lambda: pruned(pruning, mine=True, dry_run=True) == (200, ["1", "2"]) or None)
    assert pruned(pruning, mine=True, older_s=9999) == (200, [])
    assert pruned(pruning, jobs=["two"]) == (200, ["2"])
    assert pruned(pruning, mine=True) == (200, ["1"])
    assert sorted(path.name for path in (pruning.directory / "jobs").iterdir()) == [runs]
    assert pruning.job("one")["outcome"] == "cancelled"


@pytest.mark.parametrize("how", ["restarted", "begun with"])
def test_a_job_that_is_needed_again_while_other_directories_are_removed_keeps_its_own(
    how: str, pruning: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: pruned(pruning, mine=True, dry_run=True) == (200, ["1", "2"]) or None)
    remove = HostRunDirectories.remove

    def meanwhile(directories: HostRunDirectories, job_id: str) -> None:
        if how == "restarted":
            assert pruning.ask("POST", "/jobs/2/restart", {}).status_code == 200
        else:
            submitted(pruning, BEGINS.replace("/base/", "/2/"), "begins")
        remove(directories, job_id)

    monkeypatch.setattr(HostRunDirectories, "remove", meanwhile)
    kept = {path.name for path in (pruning.directory / "jobs" / "2").iterdir()}
    assert pruned(pruning, mine=True) == (200, ["1"])
    assert kept <= {path.name for path in (pruning.directory / "jobs" / "2").iterdir()}
    assert not list((pruning.directory / "jobs").glob(".removed-*"))


def test_a_directory_that_cannot_be_removed_keeps_no_other_and_its_own_user_is_told(
    pruning: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "GRACE", timedelta(0))
    monkeypatch.setattr(
        pruning.service.live, "value", Settings(retention=RetentionSettings(count_per_user=0))
    )
    wait_until(lambda: pruned(pruning, mine=True, dry_run=True) == (200, ["1", "2"]) or None)
    kept, remove = ["1"], HostRunDirectories.remove

    def busy(directories: HostRunDirectories, job_id: str) -> None:
        if job_id in kept:
            raise Unavailable("rm: cannot remove '.removed-1/mounted': Device or resource busy")
        remove(directories, job_id)

    monkeypatch.setattr(HostRunDirectories, "remove", busy)
    service = RetentionService(pruning.service, HostRunDirectories(pruning.directory / "jobs"))
    monkeypatch.setattr(HostRunDirectories, "sweep", lambda _directories: None)
    assert [each.run.job_id for each in service.apply()] == ["2"]
    kept.append(runs := submitted(pruning, BASE, "three"))
    pruning.until("running", runs)
    pruning.ask("POST", f"/jobs/{runs}/cancel", {})
    pruning.until("finished", runs)
    wait_until(lambda: pruned(pruning, mine=True, dry_run=True) == (200, [runs]) or None)
    answer = pruning.ask("POST", "/prune", {"jobs": [runs]})
    assert (answer.status_code, "Device or resource busy" in answer.text) == (503, True)


def test_nobody_removes_what_is_not_theirs_or_still_runs(pruning: Site) -> None:
    runs = submitted(pruning, BASE, "runs")
    pruning.until("running", runs)
    assert pruned(pruning, jobs=[runs])[0] == 403
    assert pruned(pruning, uid=ME + 1, jobs=["1"])[0] == 403
    assert pruned(pruning, uid=ME + 1, mine=True) == (200, [])
    assert pruned(pruning, uid=ME + 1)[0] == 403
    assert (pruning.directory / "jobs" / "1").exists()


def test_only_ones_own_directories_are_measured_for_oneself(
    pruning: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def size(_directories: HostRunDirectories, job_id: str) -> int:
        measured.append(job_id)
        return 0

    monkeypatch.setattr(HostRunDirectories, "size", size)
    wait_until(lambda: pruned(pruning, mine=True, dry_run=True) == (200, ["1", "2"]) or None)
    measured.clear()
    assert pruned(pruning, uid=ME + 1, mine=True, dry_run=True) == (200, [])
    assert measured == []
    assert pruned(pruning, mine=True, dry_run=True) == (200, ["1", "2"])
    assert sorted(measured) == ["1", "2"]


def test_what_others_begin_with_is_known_without_reading_their_jobs_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = RetentionService(site.service, HostRunDirectories(site.directory / "jobs"))
    submitted(site, BASE + "queue: {not_before: 2099-01-01T00:00:00Z}\n", "waits")
    monkeypatch.delattr(retention, "parse_revision")
    assert service._needed() == frozenset()
