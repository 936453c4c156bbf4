"""Checkpoints of another user, which a daemon of root has looked at by workers: hostile ones harm nobody."""

import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from jobs.contract import FileDigest, Manifest, checkpoint_name, dump
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.set_aside import remove
from runner.adapters.host.users import HostUsers
from runner.base.errors import Unavailable
from runner.core.ports.checkpoints import ProgramFiles, Verification
from runner.core.ports.users import Owner, User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has users beside itself")
NOBODY = Owner(65534, 65534, "nobody")
PATTERN = ProgramFiles("out/checkpoint-*", 2)
FIXED = ProgramFiles("state.bin", 2)
LONG_AGO_S = 1_000_000_000


@pytest.fixture(scope="module")
def users() -> Iterator[HostUsers]:
    made = HostUsers()
    yield made
    made.close()


@pytest.fixture
def directory(users: HostUsers) -> Iterator[HostRunDirectory]:
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        made = HostRunDirectory(Path(path) / "7", NOBODY, CheckpointVerifier(work=users))
        made.create()
        for name in ("lineages", "work"):
            (made.root / name / "1").mkdir(parents=True, mode=0o700)
            os.chown(made.root / name / "1", NOBODY.uid, NOBODY.gid)
        yield made
        opened = os.open(made.root, os.O_RDONLY)
        remove(opened, "lineages")
        remove(opened, "work")
        os.close(opened)


def given(path: Path) -> Path:
    """Give a tree to its user."""
    for place, _, files, opened in os.fwalk(path, follow_symlinks=False):
        os.chown(place, NOBODY.uid, NOBODY.gid)
        for name in files:
            os.chown(name, NOBODY.uid, NOBODY.gid, dir_fd=opened, follow_symlinks=False)
    return path


def checkpoint(directory: HostRunDirectory, step: int) -> Path:
    where = directory.paths(1, 1).lineage_dir / checkpoint_name(step)
    where.mkdir()
    (where / "state").write_bytes(b"weights")
    digest = FileDigest(bytes=7, sha256=hashlib.sha256(b"weights").hexdigest())
    known = {"contract_version": 1, "job_id": "7", "lineage": 1, "attempt": 1, "revision": 1, "created": 0.0}
    manifest = Manifest.model_validate({**known, "step": step, "files": {"state": digest}})
    (where / "manifest.json").write_text(dump(manifest))
    return given(where)


def nest(place: Path) -> None:
    here = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.fchown(inner, NOBODY.uid, NOBODY.gid)
        os.close(here)
        here = inner
    os.close(here)


def fill_with_names(place: Path) -> None:
    for number in range(20_000):
        (place / f"{number:05}{'x' * 240}").touch()


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something in the place of the files of a checkpoint."""

    def hostile(place: Path) -> None:
        for each in tuple(place.iterdir()):
            each.unlink()
            make(each)

    return hostile


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 * 1024**4)


HOSTILE = {
    "nested": nest,
    "names": fill_with_names,
    "fifo": replace_by(os.mkfifo),
    "sparse": replace_by(make_sparse),
    "link": replace_by(lambda path: path.symlink_to("/etc/shadow")),
    "directory": replace_by(lambda path: path.mkdir()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_of_the_contract_hides_no_other(directory: HostRunDirectory, name: str) -> None:
    checkpoint(directory, 1)
    HOSTILE[name](checkpoint(directory, 2))
    paths = directory.paths(1, 1)
    found = directory.saved(paths)
    assert 1 in found.steps
    assert all("\n" not in each and len(each) < 300 for each in (*found.rejected, *found.unverified))
    assert directory.saved(paths, Verification.KNOWN).steps == found.steps
    room = directory.room_to_save(paths)
    assert room is not None


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_checkpoint_of_a_program_hides_no_other(directory: HostRunDirectory, name: str) -> None:
    paths = directory.paths(1, 1)
    for step in (1, 2):
        place = paths.work_dir / "out" / f"checkpoint-{step}"
        place.mkdir(parents=True)
        (place / "model.bin").write_bytes(b"weights")
        os.utime(place / "model.bin", (LONG_AGO_S, LONG_AGO_S))
    given(paths.work_dir)
    HOSTILE[name](paths.work_dir / "out" / "checkpoint-2")
    found = directory.program_saved(paths, PATTERN)
    assert all("\n" not in each and len(each) < 300 for each in found.rejected)
    if name == "names":
        assert found.unverified == ("out/checkpoint-*: there are too many files",)
        return
    assert 1 in found.steps
    chosen = directory.choose_program_checkpoint(paths, PATTERN, 1, is_first=False)
    assert chosen is not None
    assert chosen.path == "out/checkpoint-1"


def test_versions_are_the_users_and_only_workers_reach_them(directory: HostRunDirectory) -> None:
    paths = directory.paths(1, 1)
    (paths.work_dir / "state.bin").write_bytes(b"weights")
    given(paths.work_dir)
    assert directory.program_saved(paths, FIXED).steps == (1,)
    kept = directory.root / "kept"
    assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (0, 0o700)
    assert {each.stat().st_uid for each in kept.rglob("*")} == {NOBODY.uid}
    (paths.work_dir / "state.bin").write_bytes(b"")
    chosen = directory.choose_program_checkpoint(paths, FIXED, None, is_first=False)
    assert chosen is not None
    assert (paths.work_dir / "state.bin").read_bytes() == b"weights"
    assert (paths.work_dir / "state.bin").stat().st_uid == NOBODY.uid


def test_a_link_in_the_place_of_the_working_directory_is_not_followed(directory: HostRunDirectory) -> None:
    elsewhere = directory.root.parent / "roots"
    (elsewhere / "out" / "checkpoint-3").mkdir(parents=True)
    (elsewhere / "out" / "checkpoint-3" / "model.bin").write_bytes(b"weights")
    paths = directory.paths(1, 1)
    (paths.work_dir / "out").symlink_to(elsewhere / "out")
    assert directory.program_saved(paths, PATTERN).steps == ()
    assert directory.choose_program_checkpoint(paths, PATTERN, 3, is_first=False) is None
    assert (elsewhere / "out" / "checkpoint-3").is_dir()


def test_a_daemon_that_leaves_waits_for_no_worker(directory: HostRunDirectory) -> None:
    directory._verifier.close()
    checkpoint(directory, 1)
    with pytest.raises(Unavailable, match="stopping"):
        directory.saved(directory.paths(1, 1))


def _take_one(connection: socket.socket) -> None:
    with connection:
        connection.recv(4)


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_killed_in_the_middle_is_one_line(
    directory: HostRunDirectory, users: HostUsers, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a killed worker is closed before it has answered."""
    checkpoint(directory, 1)
    paths, spawn, left = directory.paths(1, 1), users._workers.spawn, [times]

    def spawn_killed(who: User, cpu_s: int | None) -> socket.socket:
        if not left[0]:
            return spawn(who, cpu_s)
        left[0] -= 1
        mine, theirs = socket.socketpair()
        Thread(target=_take_one, args=(theirs,)).start()
        return mine

    monkeypatch.setattr(users._workers, "spawn", spawn_killed)
    found = directory.saved(paths)
    assert found.steps == ((1,) if times == 1 else ())
    if times == 2:
        assert found.unverified == ("checkpoints: the process that reads it as nobody has ended",)
        assert not found.complete
    assert directory.saved(paths).steps == (1,)


@pytest.mark.parametrize("name", ["fifo", "link", "directory", "sparse"])
def test_hostile_numbers_are_no_numbers(directory: HostRunDirectory, name: str) -> None:
    paths = directory.paths(1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.metrics.touch()
    given(paths.attempt_dir)
    HOSTILE[name](paths.attempt_dir)
    found = directory.read_numbers(paths, 0)
    assert found is None or found.curves == {}


def test_numbers_of_a_user_come_back_as_points(directory: HostRunDirectory) -> None:
    paths = directory.paths(1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.metrics.write_text("".join(f'{{"time": {n}, "step": {n}, "loss": 1}}\n' for n in range(3000)))
    given(paths.attempt_dir)
    found = directory.read_numbers(paths, 0)
    assert found is not None
    assert found.offset == paths.metrics.stat().st_size
    assert sum(row[5] for row in found.curves["loss"]) == 3000
    assert len(found.curves["loss"]) <= 1024
    assert directory.read_numbers(paths, found.offset) is None
