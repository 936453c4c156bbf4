"""The host's side of the run directory, with a job that wishes the host no good."""

import fcntl
import os
import shutil
from itertools import chain
from pathlib import Path

import pytest

from jobs.contract import AttemptSpec, Cause, FileDigest, Manifest, Phase, Result, Status, dump, file_sha256
from jobs.contract.plans.causal_lm import CausalLm
from runner.adapters.host.run_directory import HostRunDirectory, highest
from runner.adapters.host.user_outputs import UserOutputs
from runner.base.errors import Refused, Unavailable
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.code import WorkingDirectory
from runner.core.ports.users import Owner
from tests.unit.runner.adapters.host.test_program_checkpoints import nest

ROOT = os.geteuid() == 0
OWNER = Owner(65532, 65532, "ann") if ROOT else Owner(os.getuid(), os.getgid(), "ann")
SPEC = AttemptSpec(job_id="1", attempt=1, lineage=1, workload=CausalLm(data="/data/workload"))


@pytest.fixture
def directory(tmp_path: Path) -> HostRunDirectory:
    directory = HostRunDirectory(tmp_path / "jobs" / "1", OWNER)
    directory.create()
    return directory


def test_leaves_belong_to_the_job_and_parents_do_not(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    for leaf in (paths.attempt_dir, paths.lineage_dir, directory.root / "homes" / "1", paths.cache):
        found = leaf.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (OWNER.uid, OWNER.gid, 0o700)
    for parent in (directory.root, *(directory.root / each for each in ("attempts", "lineages", "homes"))):
        assert (parent.stat().st_uid, parent.stat().st_mode & 0o022) == (os.geteuid(), 0)


def test_the_spec_is_there_before_the_directory_is(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    assert AttemptSpec.model_validate_json(paths.spec.read_bytes()) == SPEC
    assert paths.log.read_bytes() == b""


def spec(attempt: int, lineage: int) -> AttemptSpec:
    return SPEC.model_copy(update={"attempt": attempt, "lineage": lineage})


def test_a_new_lineage_begins_with_an_empty_home_and_keeps_the_cache(directory: HostRunDirectory) -> None:
    first = directory.prepare(spec(1, 1), {})
    (first.home / "my-checkpoint").write_text("step 5")
    (first.cache / "kernel").write_text("compiled")
    again = directory.prepare(spec(2, 1), {})
    assert (again.home / "my-checkpoint").read_text() == "step 5"
    afresh = directory.prepare(spec(3, 2), {})
    assert list(afresh.home.iterdir()) == []
    assert (afresh.cache / "kernel").read_text() == "compiled"


def test_a_return_to_an_earlier_lineage_finds_its_home_again(directory: HostRunDirectory) -> None:
    (directory.prepare(spec(1, 1), {}).home / "mine").write_text("1")
    (directory.prepare(spec(2, 2), {}).home / "mine").write_text("2")
    assert (directory.prepare(spec(3, 1), {}).home / "mine").read_text() == "1"


@pytest.mark.parametrize(("lineage", "found"), [(2, True), (3, False)])
def test_a_directory_made_before_keeps_the_home_of_its_newest_lineage(
    lineage: int, *, found: bool, tmp_path: Path
) -> None:
    root = tmp_path / "jobs" / "1"
    for name in ("attempts", "lineages/1", "lineages/2", "home"):
        (root / name).mkdir(parents=True)
    (root / "home" / "mine").write_text("x")
    for leaf in (root / "lineages" / "1", root / "lineages" / "2", root / "home"):
        os.chown(leaf, OWNER.uid, OWNER.gid)
    directory = HostRunDirectory(root, OWNER)
    directory.create()
    assert (directory.prepare(spec(5, lineage), {}).home / "mine").exists() is found
    assert (root / "homes" / "2" / "mine").exists()


def test_preparing_twice_changes_nothing_that_the_job_has_written(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    paths.log.write_text("step 1\n")
    directory.prepare(SPEC, {})
    assert paths.log.read_text() == "step 1\n"


@pytest.mark.skipif(not ROOT, reason="only root gives directories to somebody else")
def test_what_belongs_to_somebody_else_is_refused(directory: HostRunDirectory) -> None:
    """As where an older store was put back, and an id is given out twice."""
    directory.prepare(SPEC, {})
    bob = HostRunDirectory(directory.root, Owner(60001, 60001, "bob"))
    with pytest.raises(Refused, match=f"belongs to uid {OWNER.uid}, not to bob; move it away"):
        bob.create()
    with pytest.raises(Refused, match="cache: belongs to uid"):
        bob.prepare(SPEC, {})


def test_the_highest_id_is_told_by_the_directories(tmp_path: Path) -> None:
    assert highest(tmp_path / "jobs") == 0
    for name in ("3", "12", ".13.draft", "canary", "9" * 30):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    assert highest(tmp_path / "jobs") == 12


def test_a_draft_left_by_a_crash_is_no_obstacle(directory: HostRunDirectory) -> None:
    (directory.root / "attempts" / ".1.draft").mkdir()
    (directory.root / "attempts" / ".1.draft" / "spec.json").write_text("torn")
    paths = directory.prepare(SPEC, {})
    assert AttemptSpec.model_validate_json(paths.spec.read_bytes()) == SPEC


def test_a_draft_is_removed_however_deep_its_owner_has_made_it(tmp_path: Path) -> None:
    """While a worker fills it, other processes of its user reach it, too."""
    staged = HostRunDirectory(tmp_path / "jobs" / ".canary-1", OWNER)
    staged.create()
    for remove in (lambda: staged.begin_seed(1), staged.remove_drafts, staged.remove):
        nest(staged.begin_seed(1) / "deep", 1200)
        remove()
    assert list((tmp_path / "jobs").iterdir()) == []


def test_secrets_are_the_jobs_alone_and_are_forgotten_at_the_end(directory: HostRunDirectory) -> None:
    for _ in range(2):
        directory.prepare(SPEC, {"token": b"s3cret"})
    found = directory.secret("token").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (OWNER.uid, 0o400)
    assert directory.secret("token").read_bytes() == b"s3cret"
    directory.forget_secrets()
    assert not directory.secret("token").exists()


def test_a_file_system_that_says_no_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("in the way")
    with pytest.raises(Unavailable, match="jobs/1"):
        HostRunDirectory(tmp_path / "jobs" / "1", OWNER).create()


def test_reports_are_read(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    paths.status.write_text(dump(Status(phase=Phase.TRAIN, time=1.0, step=7)))
    paths.result.write_text(dump(Result(cause=Cause.COMPLETED, step=9)))
    status, result = directory.status(paths), directory.result(paths)
    assert status is not None
    assert result is not None
    assert (status.step, result.cause) == (7, Cause.COMPLETED)


def test_which_reports_there_are_is_asked_by_their_names(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    assert directory.there(paths) == frozenset()
    paths.status.write_text("{}")
    paths.attempt_dir.joinpath("other").write_text("")
    paths.result.symlink_to(paths.attempt_dir / "nowhere")
    assert directory.there(paths) == {paths.STATUS}


@pytest.mark.parametrize("trick", ["missing", "garbage", "huge", "link", "pipe", "directory", "wrong"])
def test_a_hostile_report_is_no_report(directory: HostRunDirectory, tmp_path: Path, trick: str) -> None:
    paths = directory.prepare(SPEC, {})
    path = paths.status
    (tmp_path / "secret").write_text(dump(Status(phase=Phase.TRAIN, time=1.0)))
    match trick:
        case "garbage":
            path.write_bytes(b"\xff{")
        case "huge":
            path.write_text(dump(Status(phase=Phase.TRAIN, time=1.0)) + " " * 70_000)
        case "link":
            path.symlink_to(tmp_path / "secret")
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "wrong":
            path.write_text('{"phase": "lunch"}')
        case _:
            assert not path.exists()
    assert directory.status(paths) is None


def checkpoint(lineage: Path, step: int, content: bytes = b"weights") -> Path:
    where = lineage / f"step-{step:08d}"
    where.mkdir()
    (where / "state.pt").write_bytes(content)
    digest = FileDigest(bytes=len(content), sha256=file_sha256(where / "state.pt"))
    manifest = Manifest(
        contract_version=1,
        job_id="1",
        step=step,
        lineage=1,
        attempt=1,
        revision=1,
        created=0.0,
        files={"state.pt": digest},
    )
    (where / "manifest.json").write_text(dump(manifest))
    return where


def test_the_newest_valid_checkpoint_is_found_and_what_is_wrong_with_newer_ones(
    directory: HostRunDirectory,
) -> None:
    paths = directory.prepare(SPEC, {})
    checkpoint(paths.lineage_dir, 10)
    torn = checkpoint(paths.lineage_dir, 20)
    (torn / "state.pt").write_bytes(b"weighty")
    (paths.lineage_dir / "step-00000030").mkdir()
    saved = directory.saved(paths)
    assert (saved.steps, saved.newest, saved.attempt) == ((10,), 10, 1)
    assert saved.rejected == (
        "step-00000030: no manifest: the save did not finish",
        "step-00000020: state.pt: content differs from its sha256",
    )
    assert saved.changed is not None


def test_without_checkpoints_there_is_none(directory: HostRunDirectory) -> None:
    assert directory.saved(directory.prepare(SPEC, {})) == SavedCheckpoints()


def test_the_content_of_the_two_newest_is_compared_and_the_size_of_the_others(
    directory: HostRunDirectory,
) -> None:
    paths = directory.prepare(SPEC, {})
    where = {step: checkpoint(paths.lineage_dir, step) for step in (10, 20, 30, 40, 50)}
    size = (where[10] / "state.pt").stat().st_size
    (where[50] / "state.pt").write_bytes(b"x" * size)  # noticed
    (where[20] / "state.pt").write_bytes(b"x" * size)  # not looked at
    (where[10] / "state.pt").unlink()
    saved = directory.saved(paths)
    assert saved.steps == (40, 30, 20)
    assert [words.partition(":")[0] for words in saved.rejected] == ["step-00000050", "step-00000010"]


def test_a_decision_lies_where_the_job_cannot_change_it(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    for text in ("first", "second"):
        directory.keep(1, "exit.json", text)
    path = paths.attempt_dir.with_name("1.exit.json")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("second", 0o600)
    assert path.parent.stat().st_uid == os.geteuid()


def test_what_is_told_of_a_job_is_not_for_the_group_of_its_owner(directory: HostRunDirectory) -> None:
    """Many users may have one group; the programs that a job runs are for all."""
    for name in ("exit.json", "change.json", "start.json", "terminal.py"):
        directory.keep(1, name, "text")
    (directory.root / "work").mkdir()
    directory.note_work(1, "f" * 64)
    kept = ((directory.root / each).iterdir() for each in ("attempts", "work"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in chain.from_iterable(kept)}
    assert modes.pop("1.terminal.py") == 0o644
    assert set(modes.values()) == {0o600}


def test_rates_are_read_from_the_end_of_what_the_program_wrote(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    assert directory.rates(paths) == ()
    lines = [
        '{"items_per_s": 5}',
        "no json",
        "[1]",
        '{"items_per_s": true}',
        '{"items_per_s": Infinity}',
        f'{{"items_per_s": 1{"0" * 400}}}',
        '{"a":' * 3000,
        "[" * 3000,
        "{}",
    ]
    paths.metrics.write_text("\n".join([*lines, '{"items_per_s": 7.5}']))
    assert directory.rates(paths) == (5.0, 7.5)


def test_a_lineage_that_is_seeded_belongs_to_the_job_once_it_is_complete(directory: HostRunDirectory) -> None:
    seen = []

    def fill(draft: Path) -> None:
        seen.append((draft.parent.name, (directory.root / "lineages" / "1").exists()))
        assert (draft.stat().st_uid, draft.stat().st_mode & 0o077) == (OWNER.uid, 0)
        (draft / "step-00000001").mkdir()

    directory.create()
    directory.seed(1, fill)
    place = directory.root / "lineages" / "1"
    assert seen == [("lineages", False)]
    assert [path.name for path in (directory.root / "lineages").iterdir()] == ["1"]
    assert (place / "step-00000001").is_dir()


def test_a_lineage_is_locked_as_long_as_a_process_keeps_its_lock(directory: HostRunDirectory) -> None:
    paths = directory.prepare(SPEC, {})
    assert not directory.is_lineage_locked(paths)
    with (paths.lineage_dir / ".lock").open("w") as lock:
        assert not directory.is_lineage_locked(paths)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert directory.is_lineage_locked(paths)
    assert not directory.is_lineage_locked(paths)


def test_a_link_in_place_of_a_lock_is_not_followed(directory: HostRunDirectory, tmp_path: Path) -> None:
    paths = directory.prepare(SPEC, {})
    with (tmp_path / "elsewhere").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (paths.lineage_dir / ".lock").symlink_to(tmp_path / "elsewhere")
        assert not directory.is_lineage_locked(paths)


def test_the_weights_that_others_begin_with_are_those_of_the_newest_lineage_that_has_any(
    directory: HostRunDirectory,
) -> None:
    assert directory.weights("best") is None
    for lineage, names in ((1, ("best-00000004", "final")), (2, ("best-00000002", "best-00000006")), (3, ())):
        place = directory.paths(1, lineage).lineage_dir
        for name in (*names, "bad-best-00000009", "step-00000008"):
            (place / name).mkdir(parents=True)
    assert directory.weights("best") == directory.root / "lineages/2/best-00000006"
    assert directory.weights("final") == directory.root / "lineages/1/final"


@pytest.mark.parametrize("name", ["../../../2/lineages/1/final", "/etc", "best-00000004/..", "bad-final"])
def test_a_name_of_weights_that_leads_elsewhere_is_none(
    directory: HostRunDirectory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the user says it."""
    directory.paths(1, 1).lineage_dir.mkdir(parents=True)
    monkeypatch.setattr(UserOutputs, "published", lambda *_: name)
    assert directory.weights("best") is None
    assert directory.weights("final") is None


@pytest.mark.parametrize("lost", [".", "attempts", "lineages"])
def test_a_lost_directory_is_no_passing_trouble(directory: HostRunDirectory, lost: str) -> None:
    directory.prepare(SPEC, {})
    shutil.rmtree(directory.root / lost)
    with pytest.raises(Refused, match="is lost, with what the job has kept there; put it back, or begin"):
        directory.prepare(spec(2, 2), {})
    directory.keep(1, "exit.json", "{}")
    directory.create()
    assert directory.prepare(spec(2, 2), {}).spec.exists()


def test_a_lost_directory_is_told_before_the_code_is_written(directory: HostRunDirectory) -> None:
    shutil.rmtree(directory.root)
    with pytest.raises(Refused, match="is lost"):
        directory.begin_work(1)


@pytest.mark.parametrize("note", [None, b"", b"[]", b"{}"])
def test_the_note_of_a_working_directory_that_a_power_cut_took_is_told(
    directory: HostRunDirectory, note: bytes | None
) -> None:
    directory.begin_work(1, OWNER.uid)
    directory.publish_work(1, "abc")
    assert directory.begin_work(1) == "abc"
    path = directory.root / "work" / "1.json"
    path.unlink() if note is None else path.write_bytes(note)
    with pytest.raises(Refused, match=r"1\.json: is lost or damaged; put it back"):
        directory.begin_work(1)


def test_what_a_launch_needs_is_on_the_disk_before_it_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes the entries that no ``fsync`` of their directory has followed."""
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(Path(f"/proc/self/fd/{fd}").readlink()))
    directory = HostRunDirectory(tmp_path / "jobs" / "1", OWNER)
    directory.create()
    assert synced == {directory.root, directory.root.parent}
    paths = directory.prepare(SPEC, {})
    parents = {directory.root / name for name in ("attempts", "lineages", "homes")}
    assert synced >= {paths.spec, paths.attempt_dir, *parents}
    directory.begin_work(1)
    directory.publish_work(1, "abc")
    assert directory.root / "work" in synced


def test_what_is_kept_of_a_job_that_waits_is_no_attempt(directory: HostRunDirectory) -> None:
    """Such as the decision about a change, or a draft of it that a killed daemon has left."""
    directory.keep(1, "change.json", "{}")
    (directory.root / "attempts" / ".1.change.json.draft").touch()
    (directory.root / "attempts" / "1.log-times").touch()
    assert directory.highest_numbers() == (0, 0)
    directory.keep(2, "exit.json", "{}")
    assert directory.highest_numbers() == (2, 0)


def test_what_an_attempt_has_written_is_set_aside_once_and_the_newest_is_kept(
    directory: HostRunDirectory,
) -> None:
    """A launch that is asked for again finds the directory that it has begun with."""
    wanted = WorkingDirectory("abc", read_only=False)

    def make(afresh: int | None) -> str:
        def fill(place: Path) -> None:
            (place / "train.py").write_text("the code")

        directory.make_work(1, wanted, fill, lambda _, __: (), afresh)
        place = directory.root / "work/1"
        (place / "corpus.bin").touch()
        (place / "corpus.bin").write_text(f"written for {afresh}")
        return ",".join(sorted(path.name for path in (directory.root / "work").iterdir()))

    assert make(None) == "1,1.json"
    (directory.root / "work/1/deep/er").mkdir(parents=True)
    assert make(2) == "1,1.before-2,1.json"
    assert (directory.root / "work/1.before-2/corpus.bin").read_text() == "written for None"
    assert not (directory.root / "work/1/deep").exists()
    (directory.root / "work/1/more").touch()
    assert make(2) == "1,1.before-2,1.json"
    assert (directory.root / "work/1/more").exists()
    assert make(3) == "1,1.before-3,1.json"
    assert (directory.root / "work/1.before-3/more").exists()
