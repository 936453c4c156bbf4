"""Checkpoints that claim, change or hide something, and how much of the daemon they get."""

import hashlib
import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.contract import CHECKPOINT_NAME, FileDigest, Manifest, checkpoint_name, dump
from runner.adapters.host import checkpoints as module
from runner.adapters.host.checkpoint_copy import copy_checkpoint
from runner.adapters.host.checkpoints import NEWEST, LineageReader
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.run_directory import HostRunDirectory
from runner.base.errors import Unavailable
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.users import Owner

ME = Owner(os.getuid(), os.getgid(), "me")
TIB = 1024**4
ZEROS = "0" * 64


class Lineage:
    """A lineage whose checkpoints a test writes, and a verifier."""

    def __init__(self, path: Path) -> None:
        self.path = path / "lineages" / "1"
        self.path.mkdir(parents=True)
        self.verifier = CheckpointVerifier(within_s=10)

    def checkpoint(self, step: int, **files: bytes) -> Path:
        where = self.path / checkpoint_name(step)
        where.mkdir()
        for name, content in (files or {"state": b"weights"}).items():
            (where / name).write_bytes(content)
        self.manifest(where, {each.name: _digest(each) for each in where.iterdir()})
        return where

    def sparse(self, step: int, size: int = 8 * TIB) -> Path:
        where = self.path / checkpoint_name(step)
        where.mkdir()
        with (where / "state").open("wb") as file:
            file.truncate(size)
        self.manifest(where, {"state": FileDigest(bytes=size, sha256=ZEROS)})
        return where

    def manifest(self, where: Path, files: dict[str, FileDigest]) -> None:
        match = CHECKPOINT_NAME.fullmatch(where.name)
        assert match
        known = {"contract_version": 1, "job_id": "1", "lineage": 1, "attempt": 1, "revision": 1}
        manifest = Manifest.model_validate({**known, "step": int(match[1]), "created": 0.0, "files": files})
        (where / "manifest.json").write_text(dump(manifest))

    def saved(self, how: Verification = Verification.CONTENT, also: int | None = None) -> SavedCheckpoints:
        opened = os.open(self.path, os.O_RDONLY)
        try:
            return self.verifier.saved(self.path, opened, ME, how, also)
        finally:
            os.close(opened)


def _digest(path: Path) -> FileDigest:
    content = path.read_bytes()
    return FileDigest(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return Lineage(tmp_path)


def test_a_file_that_claims_more_than_it_takes_on_disk_is_not_hashed_and_unknown(lineage: Lineage) -> None:
    lineage.checkpoint(10)
    lineage.sparse(20)
    found = lineage.saved()
    assert (found.steps, found.rejected) == ((10,), ())
    assert found.unverified == ("step-00000020: claims 8 TiB, and takes 0 B on disk",)


def test_a_file_with_holes_of_an_ordinary_size_is_verified(lineage: Lineage) -> None:
    where = lineage.sparse(10, 1024**2)
    lineage.manifest(where, {"state": _digest(where / "state")})
    assert lineage.saved().steps == (10,)


def test_a_file_with_a_thousand_names_is_read_once(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    where = lineage.checkpoint(10)
    for number in range(99):
        (where / f"name-{number}").hardlink_to(where / "state")
    files = {each.name: _digest(each) for each in where.iterdir() if each.name != "manifest.json"}
    lineage.manifest(where, files)
    checked: list[LineageReader] = []

    def note(reader: LineageReader) -> None:
        checked.append(reader)

    monkeypatch.setattr(LineageReader, "_check_time", note)
    assert lineage.saved().steps == (10,)
    assert len(checked) == 2  # before the first file, and in it


def test_a_verification_ends_at_its_deadline_and_leaves_the_rest_unknown(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        lineage.checkpoint(step)
    seconds = count(step=4)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    found = lineage.saved()
    assert found.steps == (30,)
    assert found.unverified == (
        "step-00000020: not verified within 10s",
        "step-00000010: not verified within 10s",
    )


def test_a_daemon_that_leaves_breaks_a_verification_off_between_two_blocks(lineage: Lineage) -> None:
    lineage.checkpoint(10)
    lineage.verifier.close()
    with pytest.raises(Unavailable, match="the daemon is stopping"):
        lineage.saved()


def test_without_hashing_a_checkpoint_counts_unless_it_was_found_to_be_bad(lineage: Lineage) -> None:
    (lineage.checkpoint(10) / "state").write_bytes(b"weighty")
    assert lineage.saved(Verification.KNOWN).steps == (10,)
    bad = lineage.saved()
    assert lineage.saved(Verification.KNOWN) == bad
    lineage.checkpoint(20)
    newer = lineage.saved(Verification.KNOWN)
    assert (newer.steps, newer.rejected) == ((20,), bad.rejected)


@pytest.mark.parametrize("change", ["content", "manifest", "other file"])
def test_a_result_is_forgotten_with_the_first_change(
    lineage: Lineage, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, digest = [], LineageReader._digest

    def counted(*args: Any) -> str:
        hashed.append(args[2])
        return digest(*args)

    monkeypatch.setattr(LineageReader, "_digest", counted)
    where = lineage.checkpoint(10)
    lineage.saved()
    lineage.saved()
    assert hashed == ["state"]
    times = (where / "state").stat()
    match change:
        case "content":
            (where / "state").write_bytes(b"weighty")
            os.utime(where / "state", ns=(times.st_atime_ns, times.st_mtime_ns))
        case "manifest":
            (where / "manifest.json").write_text((where / "manifest.json").read_text())
        case _:
            (where / "new").write_bytes(b"weighty")
            (where / "new").rename(where / "state")
    lineage.saved()
    assert hashed == ["state", "state"]


def test_what_is_invalid_is_remembered_as_well(lineage: Lineage) -> None:
    where = lineage.checkpoint(10)
    (where / "state").write_bytes(b"weighty")
    assert lineage.saved().rejected == lineage.saved(Verification.KNOWN).rejected


def test_a_file_that_changes_while_it_is_verified_is_unknown(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = lineage.checkpoint(10)
    monkeypatch.setattr(LineageReader, "_check_time", lambda _: (where / "state").write_bytes(b"weighty"))
    assert lineage.saved().unverified == ("step-00000010: state: was changed while it was verified",)


def test_only_the_newest_checkpoints_are_looked_at_and_one_that_is_asked_for(lineage: Lineage) -> None:
    for step in range(NEWEST + 3):
        lineage.checkpoint(step)
    assert lineage.saved(Verification.SIZES).steps == tuple(range(NEWEST + 2, 2, -1))
    assert lineage.saved(Verification.SIZES, also=1).steps[-1] == 1


def test_no_look_reads_more_manifests_than_fit_into_a_limit(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(5):
        lineage.checkpoint(step)
    size = (lineage.path / checkpoint_name(0) / "manifest.json").stat().st_size
    monkeypatch.setattr(module, "MAX_MANIFESTS_BYTES", 2 * size)
    assert lineage.saved(Verification.SIZES).steps == (4, 3)


def test_a_copy_keeps_holes_and_names(lineage: Lineage, tmp_path: Path) -> None:
    where, size = lineage.sparse(10), 8 * TIB
    with (where / "state").open("r+b") as file:
        os.pwrite(file.fileno(), b"head", 0)
        os.pwrite(file.fileno(), b"tail", size - 4)
    (where / "again").hardlink_to(where / "state")
    lineage.manifest(where, dict.fromkeys(("state", "again"), FileDigest(bytes=size, sha256=ZEROS)))
    target, steps = tmp_path / checkpoint_name(10), []
    source = os.open(where, os.O_RDONLY)
    copy_checkpoint(source, target, lambda: steps.append(1))
    os.close(source)
    copied = (target / "state").stat()
    assert (copied.st_size, copied.st_ino) == (size, (target / "again").stat().st_ino)
    assert copied.st_blocks <= (where / "state").stat().st_blocks
    with (target / "state").open("rb") as file:
        assert (os.pread(file.fileno(), 5, 0), os.pread(file.fileno(), 9, size - 4)) == (b"head\0", b"tail")
    assert (target / "manifest.json").read_bytes() == (where / "manifest.json").read_bytes()
    assert len(steps) == 2


def test_a_run_directory_copies_the_checkpoint_of_a_step(tmp_path: Path) -> None:
    directory = HostRunDirectory(tmp_path, ME)
    lineage = Lineage(tmp_path)
    lineage.checkpoint(10, state=b"weights", other=b"more")
    (tmp_path / "copy").mkdir()
    directory.copy_checkpoint(directory.paths(1, 1), 10, tmp_path / "copy")
    copied = sorted(path.name for path in (tmp_path / "copy" / checkpoint_name(10)).iterdir())
    assert copied == ["manifest.json", "other", "state"]
