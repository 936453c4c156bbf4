"""Image of a job; the rest of the workshop is met through the routes and with real attempts."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from jobs.contract import RunPaths
from runner.agent.attempts import prepare
from runner.agent.attempts.checkpoints import program_files
from runner.agent.attempts.service import AttemptService
from runner.base.errors import Refused, Unavailable
from runner.core.job.attempt import Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.ports.checkpoints import ProgramCheckpoint, SavedCheckpoints
from runner.core.ports.code import WorkingDirectory
from runner.core.ports.executor import LaunchRequest
from runner.core.ports.images import BuildFailed
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner, PathKind, User
from runner.files.job.load import parse_job
from runner.files.revision import InitialWeights, Revision, parse_revision
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.daemon.services import attempt_config
from tests.fakes.engine.images import FakeImages

if TYPE_CHECKING:
    from runner.agent.ports import RunDirectory

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PROJECT = 4711
ME = Owner(os.getuid(), os.getgid(), "me")


STDLIB = "{kind: causal_lm, data: stdlib}"


def row(image: str, more: str = "", groups: tuple[int, ...] = (), workload: str = STDLIB) -> JobRow:
    job = parse_job(f"workload: {workload}\nimage: {image}\n{more}".encode(), Path("/x/job.yaml"))
    revision = Revision(
        job=job, path="/x/job.yaml", accelerator="cpu", uid=ME.uid, gid=ME.gid, groups=groups, user=ME.name
    )
    return JobRow(Job("1", Preparing(NOW)), "job", ME, NOW, 50, RevisionText.of(revision.model_dump_json()))


def attempt_service(path: Path, images: FakeImages, *, in_container: bool = True) -> AttemptService:
    return AttemptService(replace(attempt_config(path, images, FakeClock()), in_container=in_container))


def test_a_named_image_is_recorded_by_its_id_and_so_is_what_it_becomes(tmp_path: Path) -> None:
    images = FakeImages()
    images.offered["site/ours:1"] = "sha256:1"
    assert attempt_service(tmp_path, images).prepare_image(row("ours")) == "sha256:1"
    images.offered["site/ours:1"] = "sha256:2"
    assert attempt_service(tmp_path, images).prepare_image(row("ours")) == "sha256:2"


def test_a_named_image_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    said = r"^ours: image site/ours:1: is not in the engine; ask the operator \(allowed_images\)$"
    with pytest.raises(BuildFailed, match=said):
        attempt_service(tmp_path, FakeImages()).prepare_image(row("ours"))


def test_a_job_that_has_run_waits_for_a_named_image_that_is_gone(tmp_path: Path) -> None:
    ran = row("ours")
    ran = replace(ran, job=replace(ran.job, attempts=1))
    with pytest.raises(Unavailable, match=r"is not in the engine; ask the operator .*; it is tried again"):
        attempt_service(tmp_path, FakeImages()).prepare_image(ran)


def test_a_name_that_is_no_longer_offered_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="image 'theirs' is no longer offered; ask the operator"):
        attempt_service(tmp_path, FakeImages()).prepare_image(row("theirs"))


def test_any_image_is_fetched_in_ones_own_daemon_and_in_no_other(tmp_path: Path) -> None:
    images, name = FakeImages(), "nvcr.io/nvidia/pytorch:25.08-py3"
    images.offered[name] = "sha256:1"
    with pytest.raises(BuildFailed, match=f"image '{name}' is no longer offered; ask the operator"):
        attempt_service(tmp_path, images).prepare_image(row(name))
    config = attempt_config(tmp_path, images, FakeClock())
    own = AttemptService(replace(config, image_reference=lambda name: name))
    assert own.prepare_image(row(name)) == "sha256:1"
    assert (tmp_path / "1" / "build.log").read_text() == "pull sha256:1\n"
    assert own.prepare_image(row(f"{{name: '{name}', pull: always}}")) == "sha256:1"
    assert images.asked == [name]
    del images.offered[name]
    with pytest.raises(BuildFailed, match=f"image {name}: is not in the engine"):
        own.prepare_image(row(name))
    ran = row(name)
    with pytest.raises(Unavailable, match="is not in the engine; it is tried again"):
        own.prepare_image(replace(ran, job=replace(ran.job, attempts=1)))


def test_processes_need_no_image_and_no_engine_is_asked(tmp_path: Path) -> None:
    assert attempt_service(tmp_path, FakeImages(), in_container=False).prepare_image(row("ours")) == "none"


def test_a_job_that_has_ended_waits_for_no_image(tmp_path: Path) -> None:
    images = FakeImages()
    attempt_service(tmp_path, images).clean_up(row("auto"))
    assert images.left == ["1"]


# --- The submitter, looked up anew


class Accounts:
    """A user database that changes, and files that note who reads them; satisfies ``Users``."""

    def __init__(self, *accounts: User) -> None:
        self.accounts = {each.uid: each for each in accounts}
        self.readers: list[User] = []

    def find_user(self, uid: int, gid: int) -> User:
        return self.accounts.get(uid, User(uid, gid, (gid,), str(uid)))

    def account_problem(self, uid: int) -> str | None:
        return None if uid in self.accounts else "has no account"

    def path_problem(self, who: User, path: Path, kind: PathKind) -> str | None:
        del path, kind
        self.readers.append(who)
        return None

    def read_as_user(self, who: User, path: Path) -> bytes:
        del path
        self.readers.append(who)
        return b"s3cret"


SECRET_AND_MOUNT = "secrets: {token: t}\nmounts: [{source: d, target: /data/d}]\n"  # noqa: S105


def launched(path: Path, accounts: Accounts) -> LaunchRequest:
    config = replace(attempt_config(path, FakeImages(), FakeClock()), users=accounts)
    job = row("ours", SECRET_AND_MOUNT, groups=(ME.gid, PROJECT))
    made = AttemptService(config)
    made.directory(job).create()
    return made.prepare_launch(job, Attempt(1, 1), "sha256:1", ()).request


def test_who_has_left_a_group_reads_nothing_with_it_at_a_later_launch(tmp_path: Path) -> None:
    accounts = Accounts(User(ME.uid, ME.gid, (ME.gid,), ME.name))
    launched(tmp_path, accounts)
    assert [who.groups for who in accounts.readers] == [(ME.gid,)] * 2


def test_a_job_runs_with_the_primary_group_that_its_submitter_has_now(tmp_path: Path) -> None:
    request = launched(tmp_path, Accounts(User(ME.uid, PROJECT, (PROJECT,), ME.name)))
    assert (request.owner.uid, request.owner.gid) == (ME.uid, PROJECT)


def test_a_job_has_the_groups_with_which_its_mounts_were_checked(tmp_path: Path) -> None:
    request = launched(tmp_path, Accounts(User(ME.uid, ME.gid, (0, ME.gid, PROJECT), ME.name)))
    assert request.groups == (PROJECT,)  # without root's, and without the primary one


def test_a_submitter_whose_account_is_gone_reads_nothing(tmp_path: Path) -> None:
    accounts = Accounts()
    with pytest.raises(Unavailable, match=rf"user me \(uid {ME.uid}\) is not in the user database"):
        launched(tmp_path, accounts)
    assert accounts.readers == []


def test_a_job_reads_nothing_of_the_person_who_has_its_uid_now(tmp_path: Path) -> None:
    other = ME.uid + 4241
    accounts = Accounts(User(other, other, (other,), "bob"))
    config = replace(attempt_config(tmp_path, FakeImages(), FakeClock()), users=accounts)
    job = row("ours", SECRET_AND_MOUNT)
    revision = parse_revision(job.revision).model_copy(update={"uid": other})
    job = replace(job, text=RevisionText.of(revision.model_dump_json()))
    with pytest.raises(Refused, match=rf"uid {other} is bob's now, and the job me's; cancel it"):
        AttemptService(config).prepare_launch(job, Attempt(1, 1), "sha256:1", ())
    assert accounts.readers == []


# --- A launch that is asked for again


def test_a_launch_that_is_asked_for_again_requests_the_same(tmp_path: Path) -> None:
    means = iter((7200.0, 3600.0))
    config = replace(
        attempt_config(tmp_path, FakeImages(), FakeClock()),
        users=Accounts(User(ME.uid, ME.gid, (ME.gid,), ME.name)),
        mean_between_s=lambda: next(means),
    )
    job = row("ours", workload="{kind: program, command: [./train]}")
    made = AttemptService(config)
    made.directory(job).create()
    first, again = (made.prepare_launch(job, Attempt(1, 1), "sha256:1", ()).request for _ in range(2))
    assert first.environment["RUNNER_MEAN_BETWEEN_S"] == "7200.0"
    assert again == first
    other = made.prepare_launch(job, Attempt(2, 1), "sha256:1", ()).request
    assert other.environment["RUNNER_MEAN_BETWEEN_S"] == "3600.0"


# --- The weights that a training begins with


class Missing(Accounts):
    """A user database whose users see no directory."""

    def path_problem(self, who: User, path: Path, kind: PathKind) -> str | None:
        del who, kind
        return f"{path}: does not exist"


@pytest.mark.parametrize("in_container", [True, False])
@pytest.mark.parametrize("kind", ["job", "path"])
@pytest.mark.parametrize("gone", [True, False])
def test_an_attempt_is_shown_the_weights_that_its_job_begins_with(
    tmp_path: Path, kind: str, *, in_container: bool, gone: bool
) -> None:
    me = User(ME.uid, ME.gid, (ME.gid,), ME.name)
    config = replace(
        attempt_config(tmp_path, FakeImages(), FakeClock()),
        users=Missing(me) if gone else Accounts(me),
        in_container=in_container,
    )
    made = AttemptService(config)
    final = config.jobs_dir / "7" / "lineages" / "1" / "final"
    final.mkdir(parents=True)
    job = row("auto")
    init = InitialWeights(job="7") if kind == "job" else InitialWeights(path=str(final))
    found = parse_revision(job.revision).model_copy(update={"init": init})
    job = replace(job, text=RevisionText.of(found.model_dump_json()))
    made.directory(job).create()
    request = made.prepare_launch(job, Attempt(1, 1), "sha256:1", ()).request
    spec = made.directory(job).spec(made.paths(job, 1, 1))
    assert spec is not None
    seen = "/data/init-weights" if in_container else str(final)
    assert spec.init_weights == (None if gone else seen)
    mounted = [(mount.source, str(mount.target)) for mount in request.mounts]
    assert mounted == ([(final, "/data/init-weights")] if in_container and not gone else [])


@pytest.mark.parametrize(("in_container", "below"), [(True, "/data/out"), (False, "/x/out")])
def test_a_checkpoint_in_a_mount_is_named_as_the_program_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, *, in_container: bool
) -> None:
    class Directory:
        def choose_program_checkpoint(self, *_: object, **__: object) -> ProgramCheckpoint:
            return ProgramCheckpoint(9, "step=9.ckpt")

    monkeypatch.setattr(prepare, "keep_program_start", lambda *_: None)
    more = "mounts: [{source: out, target: /data/out, read_only: false}]\n"
    more += "checkpoint: {files: /data/out/*.ckpt}\n"
    revision = parse_revision(row("auto", more, workload="{kind: program, command: [train]}").revision)
    wanted = program_files(revision)
    assert wanted is not None
    launches = attempt_service(tmp_path, FakeImages(), in_container=in_container)._launches
    paths = RunPaths(tmp_path, 2, 1)
    start = launches._choose(wanted, revision, Attempt(2, 1), cast("RunDirectory", Directory()), paths)
    assert start is not None
    assert start.path == f"{below}/step=9.ckpt"


@pytest.mark.parametrize("saved", [SavedCheckpoints(steps=(5,)), SavedCheckpoints(complete=False)])
def test_the_files_of_a_program_whose_checkpoints_are_not_known_are_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: SavedCheckpoints
) -> None:
    class Directory:
        def paths(self, attempt: int, lineage: int) -> RunPaths:
            return RunPaths(tmp_path, attempt, lineage)

        def saved(self, *_: object) -> SavedCheckpoints:
            return saved

    revision = parse_revision(row("auto", workload="{kind: program, command: [train]}").revision)
    monkeypatch.setattr(Revision, "working_directory", lambda _: WorkingDirectory("s"))
    known = prepare.LaunchPreparer._begins_afresh(revision, Attempt(2, 1), cast("RunDirectory", Directory()))
    assert known is None
