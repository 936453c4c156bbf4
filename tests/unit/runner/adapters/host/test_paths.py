import os
import socket
import tempfile
from pathlib import Path

import pytest

from runner.adapters.host import paths
from runner.adapters.host.paths import MAX_SECRET_BYTES, check_path
from runner.core.ports import users
from runner.core.ports.users import PathKind

NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "it's a\nfile; echo").write_text("x")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "password").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("folder", "directory"),
        ("link", "directory"),
        ("file", "file"),
        ("it's a\nfile; echo", "file"),
        ("folder", "either"),
        ("file", "either"),
        ("folder", "writable"),
    ],
)
def test_a_path_of_the_right_kind_is_no_problem(place: Path, name: str, kind: PathKind) -> None:
    assert check_path(place / name, kind) is None


@pytest.mark.parametrize(
    ("name", "kind", "fact"),
    [
        ("gone", "either", "does not exist"),
        ("dangling", "either", "does not exist"),
        ("round", "either", "is a loop of symbolic links"),
        ("file/below", "either", "not a directory"),
        ("x" * 300, "file", "file name too long"),
        ("file", "directory", "is not a directory"),
        ("folder", "file", "is not a file"),
        ("pipe", "either", "is neither a file nor a directory"),
        ("pipe", "file", "is not a file"),
        ("folder", "secret", "is not a file"),
        ("password", "file", "leads to /etc/passwd, which belongs to the system and is never shown to a job"),
    ],
)
def test_a_path_that_will_not_do_is_told_in_one_line(
    place: Path, name: str, kind: PathKind, fact: str
) -> None:
    assert check_path(place / name, kind) == f"{place / name}: {fact}"


@pytest.mark.parametrize(("name", "shown"), [("nul\0", r"nul\x00"), ("\ud800", r"\ud800")])
def test_a_name_that_no_file_can_have_is_told(place: Path, name: str, shown: str) -> None:
    assert check_path(place / name, "file") == f"{place}/{shown}: is not a valid file name"


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm", "/etc", "/run", "/var", "/sys/fs"])
def test_the_system_is_never_shown_to_a_job(path: str) -> None:
    assert "never shown to a job" in str(check_path(Path(path), "either"))


def test_work_in_the_home_of_root_is_told_its_next_step(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ROOT_HOME", place / "folder")
    monkeypatch.setattr(users, "SYSTEM", (place / "folder",))
    said = check_path(place / "folder", "either")
    assert said is not None
    assert said.endswith(": belongs to the system and is never shown to a job; put it below /srv or /home")
    assert str(check_path(Path("/proc/self"), "either")).endswith("is never shown to a job")


def test_a_socket_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("docker.sock")
        assert check_path(Path("docker.sock"), "either") == "docker.sock: is neither a file nor a directory"


def open_to_all(directory: Path) -> None:
    """Let everybody into a directory of the test, which pytest keeps to itself."""
    for each in (directory, *directory.parents):
        if each == Path(tempfile.gettempdir()):
            break
        each.chmod(0o755)


def as_nobody(path: Path, kind: PathKind) -> str | None:
    """Return what ``check_path`` says to a user who may do nothing."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        return check_path(path, kind)
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("mode", "kind", "fact"),
    [
        (0o700, "directory", "you do not have permission to read it"),
        (0o744, "directory", "you do not have permission to read it"),
        (0o755, "writable", "you do not have permission to write to it; add read_only: true"),
    ],
)
def test_rights_are_those_of_the_current_user(tmp_path: Path, mode: int, kind: PathKind, fact: str) -> None:
    open_to_all(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    assert as_nobody(folder, kind) == f"{folder}: {fact}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_what_lies_below_a_closed_directory_cannot_be_asked_about(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    (tmp_path / "closed" / "inside").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    inside = tmp_path / "closed" / "inside"
    assert as_nobody(inside, "directory") == f"{inside}: you do not have permission to access it"


def test_a_secret_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    (tmp_path / "most").write_bytes(bytes(MAX_SECRET_BYTES))
    (tmp_path / "more").write_bytes(bytes(MAX_SECRET_BYTES + 1))
    assert check_path(tmp_path / "most", "secret") is None
    fact = "is larger than 1 MiB, the limit for a secret; mount it instead"
    assert check_path(tmp_path / "more", "secret") == f"{tmp_path}/more: {fact}"
