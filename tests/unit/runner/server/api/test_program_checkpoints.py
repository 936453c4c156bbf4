"""Jobs whose programs save on their own, over a real daemon, store and run directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runner.server.api.test_jobs import Site, error, wait_until

PROGRAM = """\
workload: {kind: program, command: [python, train.py]}
checkpoint: {files: "/job/home/out/ckpt-*.pt"}
retry: {backoff: 0s}
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def save(site: Site, name: str, content: bytes) -> Path:
    path = site.directory / "jobs/1/home/out" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    if os.geteuid() == 0:
        owner = (site.directory / "jobs/1/home/").stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    return path


@pytest.mark.parametrize("way", ["release", "restart"])
def test_a_job_without_a_usable_checkpoint_begins_at_step_0_only_if_that_is_asked_for(
    site: Site, way: str
) -> None:
    site.submit(PROGRAM)
    site.until("running")
    torn = save(site, "ckpt-5.pt", b"PK\x03\x04")
    site.end(1)
    assert "checkpoints exist and none is valid" in site.until("held")["why"]
    status, kind, message = error(site.ask("POST", f"/jobs/1/{way}", {} if way == "restart" else None))[:3]
    assert (status, kind) == (403, "refused")
    assert "no checkpoint can be used: out/ckpt-5.pt: ends before the index of its archive" in message
    assert "runner restart 1 --from scratch" in message
    assert site.job()["state"] == "held"
    torn.write_bytes(b"whole")
    assert site.ask("POST", f"/jobs/1/{way}", {} if way == "restart" else None).status_code == 200
    site.until("running")


def test_from_scratch_is_such_a_word(site: Site) -> None:
    site.submit(PROGRAM)
    site.until("running")
    save(site, "ckpt-5.pt", b"PK\x03\x04")
    site.end(1)
    site.until("held")
    assert site.ask("POST", "/jobs/1/restart", {"from": "scratch"}).status_code == 200
    site.until("running")


def told(site: Site, text: str) -> str:
    """Return the event that has a text, once there is one."""

    def found() -> str | None:
        events = site.ask("GET", "/events?job=job").json()["events"]
        return next((each["text"] for each in events if text in each["text"]), None)

    return wait_until(found)


@pytest.mark.parametrize("code", [0, 1])
def test_a_pattern_that_never_matched_is_told_at_the_first_end_and_by_why(site: Site, code: int) -> None:
    site.submit(PROGRAM)
    site.until("running")
    save(site, "model.pt", b"whole")
    fact = "checkpoint.files has named nothing: there is no ckpt-*.pt in out, which has model.pt"
    assert fact in site.ask("GET", "/jobs/1/why").json()["why"]
    site.end(code)
    told(site, "attempt 1 ended")
    event = told(site, fact)
    assert "attempt 1 ended" in event if code == 0 else "attempt 1" in event
    assert site.ask("GET", "/jobs/1/why").json()["why"].count(fact) == 1


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_program_that_begins_again_instead_of_going_on_is_told(site: Site, code: int) -> None:
    site.submit(PROGRAM)
    site.until("running")
    save(site, "ckpt-5.pt", b"five")
    site.end(137)
    assert "from /job/home/out/ckpt-5.pt (step 5)" in told(site, "attempt 2 started")
    save(site, "ckpt-1.pt", b"one")
    site.end(code)
    fact = "its checkpoint: it was given out/ckpt-5.pt, and has saved out/ckpt-1.pt after that"
    assert "checkpoint.resume_args, or RUNNER_RESUME_FROM" in told(site, fact)
    assert "attempt 2 ended" in told(site, fact)


@pytest.mark.parametrize("pattern", ["last", "*", "{last,best}"])
def test_an_unnumbered_checkpoint_is_no_step(site: Site, pattern: str) -> None:
    site.submit(PROGRAM.replace("ckpt-*", pattern))
    site.until("running")
    save(site, "last.pt", b"whole")
    site.end(137)
    assert "from /job/home/out/last.pt (version 1)" in told(site, "attempt 2 started")
    shown = site.job()
    assert (shown["saved_step"], shown["saved_version"]) == (None, 1)
    assert shown["attempts"][0]["checkpoint_step"] is None
    status, _, message = error(site.ask("POST", "/jobs/1/restart", {"from": 99}))
    assert (status, "no valid checkpoint of version 99; lineage 1 has 1" in message) == (403, True)
    answer = site.ask("POST", "/jobs/1/restart", {"from": 1}).json()
    assert answer["begins"] == "from version 1"
    assert answer["job"]["saved_version"] == 1
    assert [each["saved_version"] for each in site.ask("GET", "/jobs").json()["jobs"]] == [1]


def test_a_number_that_is_a_step_is_called_so(site: Site) -> None:
    site.submit(PROGRAM)
    site.until("running")
    save(site, "ckpt-5.pt", b"five")
    site.end(137)
    told(site, "attempt 2 started")
    shown = site.job()
    assert (shown["saved_step"], "saved_version" in shown) == (5, False)
    assert shown["attempts"][0]["checkpoint_step"] == 5
    message = error(site.ask("POST", "/jobs/1/restart", {"from": 99}))[2]
    assert "no valid checkpoint of step 99; lineage 1 has 5" in message
    assert site.ask("POST", "/jobs/1/restart", {"from": 5}).json()["begins"] == "from step 5"


def test_versions_that_are_seen_first_by_a_restart_are_called_so(site: Site) -> None:
    site.submit(PROGRAM.replace("ckpt-*", "*"))
    site.until("running")
    save(site, "last.pt", b"whole")
    wait_until(lambda: "has 1;" in error(site.ask("POST", "/jobs/1/restart", {"from": 99}))[2] or None)
    assert site.ask("POST", "/jobs/1/restart", {"from": 1}).json()["begins"] == "from version 1"
