"""Looking at files as somebody else: what they may not see, the daemon must not see for them."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import pytest

from runner.adapters.host import as_user
from runner.adapters.host.paths import MAX_SECRET_BYTES
from runner.base.errors import Unavailable, UsageError
from runner.core.ports.users import PathKind, User

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can look as somebody else")
ME = as_user.find_user(os.getuid(), os.getgid())
NOBODY = User(65534, 65534, (65534,), "nobody")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everybody may enter, unlike those that pytest makes."""
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_a_person_comes_from_the_hosts_records() -> None:
    assert ME.uid == os.getuid()
    assert ME.gid in ME.groups
    assert as_user.find_user(4_000_000, 7) == User(4_000_000, 7, (7,), "4000000")


LOOKS = [
    ("either", "absent", "does not exist"),
    ("directory", "file", "is not a directory"),
    ("file", "folder", "is not a file"),
    ("either", "pipe", "is neither a file nor a directory"),
    ("either", "system", "belongs to the system and is never shown to a job"),
    ("writable", "file", None),
    ("directory", "folder", None),
]


@pytest.mark.parametrize(
    "who", [pytest.param(ME, id="me"), pytest.param(NOBODY, id="nobody", marks=needs_root)]
)
@pytest.mark.parametrize(("kind", "name", "problem"), LOOKS)
def test_what_stands_against_a_path(
    open_path: Path, who: User, kind: PathKind, name: str, problem: str | None
) -> None:
    (open_path / "file").write_text("")
    (open_path / "file").chmod(0o666)
    (open_path / "folder").mkdir()
    (open_path / "system").symlink_to("/etc/passwd")
    os.mkfifo(open_path / "pipe")
    (open_path / "pipe").chmod(0o666)
    found = as_user.path_problem(who, open_path / name, kind)
    assert (found is None) == (problem is None)
    if found is not None:
        assert str(problem) in found
        assert found.startswith(f"{open_path / name}: ")


@needs_root
def test_what_nobody_may_not_do_is_told(open_path: Path) -> None:
    folder = open_path / "folder"
    folder.mkdir(mode=0o755)
    assert as_user.path_problem(NOBODY, folder, "directory") is None
    assert (
        as_user.path_problem(NOBODY, folder, "writable")
        == f"{folder}: you may not write to it; add read_only: true"
    )
    folder.chmod(0o700)
    assert as_user.path_problem(NOBODY, folder, "either") == f"{folder}: you may not read it"


def test_hostile_paths_are_paths(hostile_path: Path) -> None:
    assert as_user.path_problem(ME, hostile_path, "directory") is None
    os.close(as_user.open_as_user(ME, hostile_path))
    (hostile_path / "secret").write_bytes(b"x")
    assert as_user.read_as_user(ME, hostile_path / "secret") == b"x"


@needs_root
def test_nobody_reads_what_is_roots(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_bytes(b"s3cret")
    secret.chmod(0o600)
    with pytest.raises(UsageError, match="permission denied"):
        as_user.read_as_user(NOBODY, secret)
    assert as_user.read_as_user(as_user.find_user(0, 0), secret) == b"s3cret"


def test_a_secret_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(MAX_SECRET_BYTES + 1))
    with pytest.raises(UsageError, match="is larger than"):
        as_user.read_as_user(ME, tmp_path / "big")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "who", [pytest.param(ME, id="me"), pytest.param(NOBODY, id="nobody", marks=needs_root)]
)
def test_a_pipe_or_a_device_in_place_of_a_secret_is_refused_and_not_waited_for(
    open_path: Path, who: User
) -> None:
    os.mkfifo(open_path / "pipe")
    (open_path / "pipe").chmod(0o666)
    for path in (open_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match=r"^[^\n]+: not a regular file$"):
            as_user.read_as_user(who, path)


@needs_root
def test_looking_as_somebody_changes_nobody_elses_eyes(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_bytes(b"s3cret")
    secret.chmod(0o600)
    groups = os.getgroups()
    with pytest.raises(UsageError, match="permission denied"):
        as_user.open_as_user(NOBODY, secret)
    assert secret.read_bytes() == b"s3cret"
    assert os.getgroups() == groups


@needs_root
def test_a_group_that_the_person_is_in_opens_what_it_opens_for_them(open_path: Path) -> None:
    shared = open_path / "shared"
    shared.write_bytes(b"ours")
    os.chown(shared, 0, 4711)
    shared.chmod(0o640)
    member = User(65534, 65534, (65534, 4711), "nobody")
    assert as_user.read_as_user(member, shared) == b"ours"
    with pytest.raises(UsageError, match="permission denied"):
        as_user.read_as_user(NOBODY, shared)


@needs_root
def test_a_file_system_that_does_not_answer_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(as_user, "LIMIT_S", 0.01)
    with pytest.raises(Unavailable, match="no answer from the file system"):
        as_user.run_as_user(NOBODY, Event().wait)


@needs_root
def test_an_unknown_machine_is_refused_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(Unavailable, match="cannot take on the groups of nobody on pdp11"):
        as_user.open_as_user(NOBODY, Path("/"))
