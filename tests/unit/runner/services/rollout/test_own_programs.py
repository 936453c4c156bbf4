"""Changes to programs of the user's own, which only print their steps."""

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import Phase, Status, dump
from runner.core.ports.store import DecisionRow
from runner.services.rollout.cost_benefit import NO_TOTAL
from runner.services.rollout.progress import count_saves
from runner.services.rollout.service import NOT_CHECKED
from tests.fakes.engine.executor import Program
from tests.unit.runner.server.api.test_rollouts import Place

SCRIPT = """\
workload: {kind: program, command: [./train], steps: 100000}
resources: {cpus: 1, memory: 128MiB}
allow: [changed_training]
progress: {pattern: 'step (?P<step>\\d+)'}
retry: {backoff: 0s}
"""
FASTER = SCRIPT.replace("./train", "./train, --fast")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    site = Place(tmp_path)
    yield site
    site.verifier.stop()
    site.service.daemon.stop()


def prints(site: Place, step: int, job_id: str = "1") -> None:
    """Let the log of a program say that it has done a step."""
    with (site.attempt_dir(job_id) / "log.txt").open("a") as log:
        log.write(f"step {step}\n")
    site.verifier.verify_all()  # looks at what programs print


def reports(site: Place, **fields: Any) -> None:
    status = Status(phase=Phase.TRAIN, time=time.time(), step=90, total_steps=100000, **fields)
    (site.attempt_dir() / "status.json").write_text(dump(status))


def test_the_steps_that_a_program_prints_count_for_a_canary(site: Place) -> None:
    site.runs(SCRIPT)
    for step in range(1, 41):
        prints(site, step)
    began = site.canary(FASTER)
    site.until("running", began["canary"])
    for step in range(1, 2000):
        prints(site, 10 * step, began["canary"])
        if site.ask("GET", f"/jobs/1/canaries/{began['canary']}").json()["finished"]:
            break
    assert site.trial(began["canary"])["rate"]["mean"] > 0
    answer = site.apply(FASTER, canary=began["canary"], dry_run=True)
    assert answer["econ"]["rate_now"]["windows"] >= 20


def test_where_the_number_of_all_steps_is_not_known_that_is_said_and_no_canary_is_run(site: Place) -> None:
    endless = SCRIPT.replace(", steps: 100000", "")
    faster = FASTER.replace(", steps: 100000", "")
    site.runs(endless)
    for step in range(1, 41):
        prints(site, step)
    answer = site.apply(faster, dry_run=True)
    assert (answer["outcome"], NO_TOTAL in answer["why"]) == ("keep", True)
    assert "--canary" not in answer["why"]
    assert NO_TOTAL in site.canary(faster)["error"]["message"]


def test_an_expectation_that_nothing_can_check_is_told_and_not_dropped(site: Place) -> None:
    site.runs(SCRIPT)
    assert NOT_CHECKED in site.apply(FASTER, at_next_start=True, expect=2, dry_run=True)["why"]
    assert NOT_CHECKED in site.apply(SCRIPT + "labels: {a: b}\n", expect=2, dry_run=True)["why"]
    reports(site, saves_when_asked=True)
    unmeasured = site.apply(FASTER, expect=2, dry_run=True)
    assert (unmeasured["outcome"], NOT_CHECKED in unmeasured["why"]) == ("resume", True)
    site.writes(4.0)
    site.saves(40)
    measured = site.apply(FASTER, expect=2, dry_run=True)
    assert (measured["outcome"], NOT_CHECKED in measured["why"]) == ("resume", False)


def test_a_program_that_reports_that_it_saves_when_it_is_asked_is_believed(site: Place) -> None:
    site.runs(SCRIPT)
    reports(site)
    silent = site.apply(FASTER, dry_run=True)
    assert silent["facts"]["checkpoint.on_demand"] is False
    assert silent["outcome"] == "keep"
    reports(site, saves_when_asked=True)
    answer = site.apply(FASTER)
    assert answer["facts"]["checkpoint.on_demand"] is True
    assert (answer["outcome"], answer["verdict"]["rule"]) == ("resume", "other-training")
    assert site.attempt(2)["lineage"] == 1


def test_a_program_that_saved_when_it_was_asked_counts_as_one_that_does(site: Place) -> None:
    site.context.programs["./train",] = Program(on_signal={signal.SIGTERM: 75})
    site.runs(SCRIPT)
    site.ask("POST", "/jobs/1/hold", {})
    site.until("held")
    site.ask("POST", "/jobs/1/release", {})
    site.attempt(2)
    ends = [each for each in site.service.store.decisions("1") if each.moment == "exit"]
    assert count_saves(ends) == (1, 1)
    assert site.apply(FASTER, dry_run=True)["facts"]["checkpoint.on_demand"] is True


def end(**facts: object) -> DecisionRow:
    body = json.dumps({"facts": {name.replace("_", "."): value for name, value in facts.items()}})
    return DecisionRow("1", 1, "exit", datetime.now(UTC), body.replace("killed.by", "killed_by"))


def test_only_what_was_asked_counts_and_only_a_save_of_the_last_step() -> None:
    ends = [
        end(killed_by="nobody", exit_code=1),
        end(killed_by="preemption", exit_code=75),
        end(killed_by="operator", progress_step=50, checkpoint_step=50),
        end(killed_by="operator", progress_step=50, checkpoint_step=40),
        end(killed_by="change", exit_code=143),
    ]
    assert count_saves(ends) == (4, 2)


def test_what_was_stopped_before_its_training_began_had_nothing_to_save() -> None:
    ends = [
        end(killed_by="preemption", exit_class="no_start"),
        end(killed_by="operator", exit_code=143, phase="data"),
        end(killed_by="operator", exit_code=143, phase="data", progress_step=50, checkpoint_step=40),
    ]
    assert count_saves(ends) == (1, 0)


def test_the_rest_of_an_evaluation_that_a_program_prints_is_work(site: Place) -> None:
    text = SCRIPT.replace("progress: {pattern: 'step (?P<step>\\d+)'}\n", "")
    site.runs(text)
    with (site.attempt_dir() / "log.txt").open("w") as log:
        log.write("Epoch 1/2: 100%|##| 100/100 [25:00<00:00, 0.07it/s]\r")
        log.write("Validation:  84%|####| 5320/6291 [45:21<08:16,  1.96it/s]\r")
    site.verifier.verify_all()
    row = site.service.queries.find("1")
    status = site.service.queries.progress(row)
    assert status is not None
    assert (status.phase, status.eval_left_s) == (Phase.EVAL, 496.0)


SAVING = f'{SCRIPT}checkpoint: {{files: "/job/home/ckpt-*.pt", resume_args: [--resume, "{{newest}}"]}}\n'


def save(site: Place, name: str) -> None:
    saved = site.directory / "jobs/1/home" / name
    saved.write_bytes(b"weights")
    owner = saved.parent.stat()
    os.chown(saved, owner.st_uid, owner.st_gid)
    later = site.directory / "later"
    while not later.exists() or later.stat().st_mtime_ns <= saved.stat().st_mtime_ns:
        later.touch()  # by the clock of files, which goes in steps of milliseconds


def test_the_number_of_a_version_is_no_step_but_the_time_of_its_write_tells_one(site: Place) -> None:
    fixed = SAVING.replace("ckpt-*.pt", "last.pt")
    site.runs(fixed)
    for step in range(1, 41):
        prints(site, step)
        if step == 30:
            save(site, "last.pt")
    answer = site.apply(fixed.replace("./train", "./train, --fast"), dry_run=True)
    assert answer["arithmetic"][0].endswith("40 of 100000 steps are done (0 %), 30 of them in a checkpoint")


def test_a_canary_begins_with_a_copy_of_what_the_program_has_saved(site: Place) -> None:
    site.runs(SAVING)
    save(site, "ckpt-30.pt")
    for step in range(1, 41):
        prints(site, step)
    began = site.canary(SAVING.replace("./train", "./train, --fast"))
    site.until("running", began["canary"])
    home = site.directory / "jobs" / began["canary"] / "home"
    assert (home / "ckpt-30.pt").read_bytes() == b"weights"
    note = json.loads((home.parent / "attempts/1.start.json").read_text())
    assert (note["start"]["step"], note["start"]["path"]) == (30, "/job/home/ckpt-30.pt")
    for step in range(31, 2000):
        prints(site, step, began["canary"])
        if site.ask("GET", f"/jobs/1/canaries/{began['canary']}").json()["finished"]:
            break
    assert site.trial(began["canary"])["done"] >= 40


def test_a_program_that_saves_to_a_mount_gets_no_canary_that_would_write_there_too(site: Place) -> None:
    (site.directory / "out").mkdir()
    text = f"{SCRIPT}mounts: [{{source: ./out, target: /data/out, read_only: false}}]\n"
    text += 'checkpoint: {files: "/data/out/ckpt-*.pt"}\n'
    site.runs(text)
    for step in range(1, 41):
        prints(site, step)
    answer = site.canary(text.replace("./train", "./train, --fast"))
    assert "which its canary would write to, too" in answer["error"]["message"]
