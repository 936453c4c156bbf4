import os
import socket
import tempfile
from pathlib import Path

import pytest

from runner.core.ports.users import PathKind
from runner.files.job import load, paths
from runner.files.job.paths import problem_with

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
    assert problem_with(place / name, kind) is None


@pytest.mark.parametrize(
    ("name", "kind", "fact"),
    [
        ("gone", "either", "does not exist"),
        ("dangling", "either", "does not exist"),
        ("round", "either", "links that go round in circles"),
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
    assert problem_with(place / name, kind) == f"{place / name}: {fact}"


@pytest.mark.parametrize("path", ["/", "/proc", "/dev/shm", "/etc", "/run", "/var", "/sys/fs"])
def test_the_system_is_never_shown_to_a_job(path: str) -> None:
    assert "never shown to a job" in str(problem_with(Path(path), "either"))


def test_a_socket_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("docker.sock")
        assert problem_with(Path("docker.sock"), "either") == "docker.sock: is neither a file nor a directory"


def open_to_all(directory: Path) -> None:
    """Let everybody into a directory of the test, which pytest keeps to itself."""
    for each in (directory, *directory.parents):
        if each == Path(tempfile.gettempdir()):
            break
        each.chmod(0o755)


def as_nobody(path: Path, kind: PathKind) -> str | None:
    """Return what ``problem_with`` says to a user who may do nothing."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        return problem_with(path, kind)
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("mode", "kind", "fact"),
    [
        (0o700, "directory", "you may not read it"),
        (0o744, "directory", "you may not read it"),
        (0o755, "writable", "you may not write to it; add read_only: true"),
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
    assert as_nobody(inside, "directory") == f"{inside}: you may not look there"


def unusable(text: str, base: Path, look: paths.Look = paths.problem_with) -> list[str]:
    job = load.load(text.encode(), Path("job.yaml"))
    return [problem.line(job.origin.path) for problem in paths.unusable(job, base, look)]


def test_every_path_of_a_job_is_asked_about_and_told_with_its_place(tmp_path: Path) -> None:
    text = (
        "workload: {kind: causal_lm, data: corpus}\n"
        "mounts:\n  - {source: /a b, target: /data/a}\n  - {source: c, target: /data/c, read_only: false}\n"
        "secrets: {key: d}\n"
    )
    asked: list[tuple[Path, PathKind]] = []

    def look(path: Path, kind: PathKind) -> str:
        asked.append((path, kind))
        return "no"

    found = unusable(text, tmp_path, look)
    assert asked == [
        (tmp_path / "corpus", "directory"),
        (Path("/a b"), "either"),
        (tmp_path / "c", "writable"),
        (tmp_path / "d", "secret"),
    ]
    assert found == [
        "job.yaml:1:35: workload.data: no",
        "job.yaml:3:14: mounts[0].source: no",
        "job.yaml:4:14: mounts[1].source: no",
        "job.yaml:5:16: secrets.key: no",
    ]


def test_a_secret_has_at_most_a_mebibyte_and_is_refused_at_its_place_beyond(tmp_path: Path) -> None:
    (tmp_path / "most").write_bytes(bytes(paths.MAX_SECRET_BYTES))
    (tmp_path / "more").write_bytes(bytes(paths.MAX_SECRET_BYTES + 1))
    text = "workload: {kind: causal_lm, data: stdlib}\nsecrets:\n  a: most\n  b: more\n"
    found = unusable(text, tmp_path)
    fact = "is larger than 1048576 bytes, the most for a secret; mounts show larger files"
    assert found == [f"job.yaml:4:6: secrets.b: {tmp_path}/more: {fact}"]


def test_the_standard_library_is_no_path() -> None:
    job = load.load(b"workload: {kind: causal_lm, data: stdlib}\n", Path("job.yaml"))
    assert list(paths.paths(job)) == []
