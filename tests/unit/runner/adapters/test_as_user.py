"""Looking at files as somebody else: what they may not see, the daemon must not see for them."""

import os
from pathlib import Path

import pytest

from runner.adapters import as_user
from runner.adapters.as_user import Person
from runner.errors import UsageError

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can look as somebody else")
ME = as_user.person(os.getuid(), os.getgid())
NOBODY = Person(65534, 65534, (65534,), "nobody")


def test_a_person_comes_from_the_hosts_records() -> None:
    assert ME.uid == os.getuid()
    assert ME.gid in ME.groups
    assert as_user.person(4_000_000, 7) == Person(4_000_000, 7, (7,), "4000000")


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("either", "absent", "does not exist, or not for you"),
        ("directory", "file", "is not a directory"),
        ("file", "folder", "is not a file"),
        ("either", "pipe", "is neither a file nor a directory"),
        ("either", "file", None),
        ("directory", "folder", None),
        ("writable", "folder", None),
    ],
)
def test_what_stands_against_a_path(tmp_path: Path, kind: str, name: str, problem: str | None) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    assert as_user.problem(ME, path, kind) == (problem and f"{path} {problem}")


def test_hostile_paths_are_paths(hostile_path: Path) -> None:
    assert as_user.problem(ME, hostile_path, "directory") is None
    assert as_user.real(ME, hostile_path) == hostile_path.resolve()
    (hostile_path / "secret").write_bytes(b"x")
    assert as_user.read(ME, hostile_path / "secret") == b"x"


@needs_root
def test_nobody_reads_what_is_roots(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s3cret")
    secret.chmod(0o600)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    assert as_user.problem(NOBODY, secret, "file") == f"{secret} is not readable for you"
    with pytest.raises(UsageError, match="is not readable for you"):
        as_user.read(NOBODY, secret)
    assert as_user.read(as_user.person(0, 0), secret) == b"s3cret"


def test_a_secret_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(as_user.MAX_SECRET_BYTES + 1))
    with pytest.raises(UsageError, match="is larger than"):
        as_user.read(ME, tmp_path / "big")


def test_links_are_followed_with_the_persons_eyes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert as_user.real(ME, tmp_path / "link") == (tmp_path / "file").resolve()
    assert as_user.real(ME, tmp_path / "absent") == tmp_path / "absent"
