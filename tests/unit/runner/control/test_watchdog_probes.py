"""Findings in the directory of a running attempt, and requests to save."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.contract import AttemptSpec, Effective, Phase, Status, dump
from runner.agent.attempts.service import AttemptService
from runner.core.job.attempt import Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.policy.catalog import facts_at
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.heartbeat import ProgressReport
from runner.core.ports.checkpoints import RoomToSave
from runner.core.ports.executor import Gone, Key
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner
from runner.files.job.load import parse_job
from runner.files.revision import Revision
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.daemon.services import attempt_config
from tests.fakes.engine.images import FakeImages

ME = Owner(os.getuid(), os.getgid(), "me")
FIRST = Attempt(1, 1)
TRAINS = "workload: {kind: causal_lm, data: stdlib}\n"
OWN = "workload: {kind: program, command: [x]}\n"


class Site:
    """One job with a directory."""

    def __init__(self, root: Path, text: str) -> None:
        clock = FakeClock()
        config = attempt_config(root, FakeImages(), clock)
        self.shop = AttemptService(replace(config, in_container=False, mean_between_s=lambda: 1234.5))
        job = parse_job(text.encode(), Path("/x/job.yaml"))
        revision = Revision(
            job=job, path="/x/job.yaml", accelerator="cpu", uid=ME.uid, gid=ME.gid, groups=(), user=ME.name
        )
        made = RevisionText.of(revision.model_dump_json())
        self.row = JobRow(Job("1", Preparing(clock.now())), "job", ME, clock.now(), 50, made)
        self.shop.directory(self.row).create()
        self.shop.prepare_launch(self.row, FIRST, "none", ())
        self.paths = self.shop.paths(self.row, 1, 1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, TRAINS)


def test_before_the_first_heartbeat_there_is_no_sign(site: Site) -> None:
    glance = site.shop.probe(site.row, FIRST)
    assert glance.sign is None
    assert "phase" not in glance.facts
    assert (glance.facts["checkpoint.present"], glance.facts["checkpoint.on_demand"]) == (False, True)


def test_a_heartbeat_is_a_sign_and_facts(site: Site) -> None:
    status = Status(
        phase=Phase.TRAIN, time=17.0, step=30, total_steps=60, data_wait=0.25, items=240, resumed_from=10
    )
    site.paths.status.write_text(dump(status))
    glance = site.shop.probe(site.row, FIRST)
    assert glance.sign == ProgressReport("train", 30, 17.0, 240, 10)
    found = {
        name: glance.facts[name]
        for name in ("phase", "data_wait", "progress.step", "progress.total_fraction")
    }
    assert found == {
        "phase": "train",
        "data_wait": 0.25,
        "progress.step": 30,
        "progress.total_fraction": 0.5,
    }


def test_what_took_effect_is_known_and_makes_another_spec(site: Site) -> None:
    before = site.shop.probe(site.row, FIRST)
    effective = Effective(
        device="cpu", device_name="x", precision="bf16", threads=1, micro_batch=7, accumulation=1
    )
    site.paths.effective.write_text(dump(effective))
    after = site.shop.probe(site.row, FIRST)
    assert (after.facts["effective.micro_batch"], after.facts["effective.precision"]) == (7, "bf16")
    assert after.effective != before.effective


def test_nobody_knows_whether_a_program_of_its_own_saves_when_it_is_asked(tmp_path: Path) -> None:
    own = Site(tmp_path, OWN)
    assert "checkpoint.on_demand" not in own.shop.probe(own.row, FIRST).facts


@pytest.mark.parametrize(
    ("text", "expected"), [(OWN, True), (f"{OWN}checkpoint: {{on_stop: false}}\n", False)]
)
def test_a_program_of_its_own_that_says_so_saves_when_it_is_asked(
    text: str, *, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Site(tmp_path, text)
    no_room = RoomToSave(free_bytes=0, newest_bytes=1)
    monkeypatch.setattr(type(own.shop.directory(own.row)), "room_to_save", lambda *_: no_room)
    for says in (None, False):
        own.paths.status.write_text(dump(Status(phase=Phase.TRAIN, time=17.0, saves_when_asked=says)))
        assert not own.shop.probe(own.row, FIRST).saves_when_asked
        assert own.shop.lacks_room_to_save(own.row, FIRST) == ""
    own.paths.status.write_text(dump(Status(phase=Phase.TRAIN, time=17.0, saves_when_asked=True)))
    assert own.shop.probe(own.row, FIRST).saves_when_asked is expected
    assert bool(own.shop.lacks_room_to_save(own.row, FIRST)) is expected
    gone = Gone(Key("i", "1", 1), 137)
    assert own.shop.examine(own.row, FIRST, gone).saves_when_asked is expected


def test_a_program_that_saves_on_its_own_is_watched(tmp_path: Path) -> None:
    """Of its checkpoints there are facts that only an end knows."""
    own = Site(
        tmp_path,
        f'{OWN}checkpoint: {{files: "/job/home/*"}}\nprogress: {{pattern: "step (?P<step>[0-9]+)"}}\n',
    )
    home = own.shop.directory(own.row).root / "homes/1"
    (home / "5.json").write_text("{}")
    own.paths.log.write_text("step 7\n")
    facts = own.shop.probe(own.row, FIRST).facts
    assert (facts["checkpoint.step"], facts["progress.step"]) == (5, 7)
    assert facts.keys() <= facts_at(DecisionPoint.WATCH).keys()


def test_a_checkpoint_without_a_manifest_is_not_taken_for_one(site: Site) -> None:
    (site.paths.lineage_dir / "step-00000005").mkdir()
    facts = site.shop.probe(site.row, FIRST).facts
    assert (facts["checkpoint.present"], facts["checkpoint.valid"]) == (True, False)


def test_an_attempt_is_told_how_long_this_host_leaves_attempts_alone(site: Site) -> None:
    spec = AttemptSpec.model_validate_json(site.paths.spec.read_bytes())
    assert (spec.checkpoint.every_s, spec.checkpoint.mean_between_s) == (120, 1234.5)


def test_an_attempt_that_was_told_an_interval_is_told_nothing_else(tmp_path: Path) -> None:
    told = Site(tmp_path, f"{TRAINS}checkpoint: {{every: 5m}}\n")
    spec = AttemptSpec.model_validate_json(told.paths.spec.read_bytes())
    assert (spec.checkpoint.every_s, spec.checkpoint.mean_between_s) == (300, None)
