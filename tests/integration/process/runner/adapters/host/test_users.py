"""Looking at files as somebody else: what they may not see, the daemon must not see for them."""

import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from runner.adapters.host import users as module
from runner.adapters.host import workers
from runner.adapters.host.archive import LEFT_OUT
from runner.adapters.host.paths import MAX_SECRET_BYTES, PathRefusedError, open_beneath
from runner.adapters.host.users import HostUsers
from runner.adapters.host.worker import CALLS
from runner.adapters.rpc.frames import Disconnected, receive, send
from runner.base.errors import Unavailable, UsageError
from runner.core.ports.users import Owner, PathKind, User

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can look as somebody else")
USERS = HostUsers()
ME = USERS.find_user(os.getuid(), os.getgid())
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
    assert USERS.find_user(4_000_000, 7) == User(4_000_000, 7, (7,), "4000000")


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
    found = USERS.path_problem(who, open_path / name, kind)
    assert (found is None) == (problem is None)
    if found is not None:
        assert str(problem) in found
        assert found.startswith(f"{open_path / name}: ")


@needs_root
def test_what_nobody_may_not_do_is_told(open_path: Path) -> None:
    folder = open_path / "folder"
    folder.mkdir(mode=0o755)
    assert USERS.path_problem(NOBODY, folder, "directory") is None
    assert (
        USERS.path_problem(NOBODY, folder, "writable")
        == f"{folder}: you do not have permission to write to it; add read_only: true"
    )
    folder.chmod(0o700)
    assert USERS.path_problem(NOBODY, folder, "either") == f"{folder}: you do not have permission to read it"


def test_hostile_paths_are_paths(hostile_path: Path) -> None:
    assert USERS.path_problem(ME, hostile_path, "directory") is None
    os.close(USERS.open_as_user(ME, hostile_path))
    (hostile_path / "secret").write_bytes(b"x")
    assert USERS.read_as_user(ME, hostile_path / "secret") == b"x"


@needs_root
def test_nobody_reads_what_is_roots(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_bytes(b"s3cret")
    secret.chmod(0o600)
    with pytest.raises(UsageError, match="you do not have permission to read it"):
        USERS.read_as_user(NOBODY, secret)
    assert USERS.read_as_user(USERS.find_user(0, 0), secret) == b"s3cret"


def test_a_secret_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(MAX_SECRET_BYTES + 1))
    with pytest.raises(UsageError, match="is larger than"):
        USERS.read_as_user(ME, tmp_path / "big")


@pytest.mark.parametrize(
    "who", [pytest.param(ME, id="me"), pytest.param(NOBODY, id="nobody", marks=needs_root)]
)
def test_a_pipe_or_a_device_in_place_of_a_secret_is_refused_and_not_waited_for(
    open_path: Path, who: User
) -> None:
    os.mkfifo(open_path / "pipe")
    (open_path / "pipe").chmod(0o666)
    with pytest.raises(UsageError, match=r"^[^\n]+: is not a file$"):
        USERS.read_as_user(who, open_path / "pipe")
    with pytest.raises(UsageError, match=r"^/dev/zero: belongs to the system"):
        USERS.read_as_user(who, Path("/dev/zero"))


@needs_root
def test_looking_as_somebody_changes_nobody_elses_eyes(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_bytes(b"s3cret")
    secret.chmod(0o600)
    groups = os.getgroups()
    with pytest.raises(UsageError, match="you do not have permission to read it"):
        USERS.open_as_user(NOBODY, secret)
    assert secret.read_bytes() == b"s3cret"
    assert os.getgroups() == groups


@needs_root
def test_a_group_that_the_person_is_in_opens_what_it_opens_for_them(open_path: Path) -> None:
    shared = open_path / "shared"
    shared.write_bytes(b"ours")
    os.chown(shared, 0, 4711)
    shared.chmod(0o640)
    member = User(65534, 65534, (65534, 4711), "nobody")
    assert USERS.read_as_user(member, shared) == b"ours"
    with pytest.raises(UsageError, match="you do not have permission to read it"):
        USERS.read_as_user(NOBODY, shared)


@needs_root
def test_a_file_system_that_does_not_answer_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.001)
    monkeypatch.setattr(workers, "START_S", 0.1)
    monkeypatch.setattr(workers, "sys", SimpleNamespace(executable=_script(tmp_path, "exec sleep 60")))
    users = HostUsers()
    with pytest.raises(Unavailable, match="no answer from the file system"):
        users.open_as_user(NOBODY, Path("/"))
    process = users._running().process
    assert process is not None
    process.kill()
    users.close()


def _script(place: Path, command: str) -> str:
    """Return a program that stands in for a process."""
    script = place / "program"
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    return str(script)


@needs_root
def test_a_process_that_was_killed_is_started_again(open_path: Path) -> None:
    users = HostUsers()
    assert users.path_problem(NOBODY, open_path, "directory") is None
    process = users._running().process
    assert process is not None
    process.kill()
    process.wait()
    other = User(65533, 65533, (65533,), "other")
    with pytest.raises(Unavailable, match="has ended"):
        users.path_problem(other, open_path, "directory")
    assert users.path_problem(other, open_path, "directory") is None
    assert users.path_problem(NOBODY, open_path, "directory") is None
    users.close()


# --- Attacks: links of /proc that lead to another user's files


@pytest.fixture
def closed(open_path: Path) -> Iterator[tuple[Path, int]]:
    """A directory that root alone may enter, and a process of root's whose working directory it is."""
    closed = open_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "secret").write_text("s3cret")
    with subprocess.Popen(["sleep", "60"], cwd=closed) as process:
        yield closed, process.pid
        process.kill()


@needs_root
@pytest.mark.parametrize("link", ["cwd", "cwd/secret", "exe", "ns/user", "root", "fd/0"])
@pytest.mark.parametrize("kind", ["either", "file", "directory", "secret", "writable"])
def test_a_link_to_another_users_process_is_refused(
    open_path: Path, closed: tuple[Path, int], link: str, kind: PathKind
) -> None:
    (open_path / "source").symlink_to(f"/proc/{closed[1]}/{link}")
    assert USERS.path_problem(NOBODY, open_path / "source", kind) is not None
    with pytest.raises(UsageError):
        USERS.open_as_user(NOBODY, open_path / "source", kind)


@needs_root
@pytest.mark.parametrize("path", ["/proc/self/maps", "/proc/1/status", "/sys/kernel/mm"])
def test_files_of_the_kernel_are_refused_through_a_link(open_path: Path, path: str) -> None:
    (open_path / "source").symlink_to(path)
    for who in (ME, NOBODY):
        assert "belongs to the system" in str(USERS.path_problem(who, open_path / "source", "either"))
        with pytest.raises(UsageError, match="belongs to the system"):
            USERS.open_as_user(who, open_path / "source")


def test_files_of_procfs_are_known_by_their_file_system_and_not_by_their_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.core.ports.users.SYSTEM", ())
    with pytest.raises(UsageError, match="belongs to the system"):
        USERS.open_as_user(ME, Path("/proc/self/status"))


@needs_root
def test_what_is_opened_as_a_user_is_opened_without_capabilities(open_path: Path) -> None:
    """A directory that only a capability opens (its owner has no right to it) stays shut to its owner."""
    shut = open_path / "shut"
    shut.mkdir(mode=0o000)
    os.chown(shut, 65534, 65534)
    assert USERS.path_problem(NOBODY, shut, "either") == f"{shut}: you do not have permission to read it"


@needs_root
def test_one_user_cannot_keep_the_process_from_others(open_path: Path) -> None:
    with ThreadPoolExecutor(64) as threads:
        found = list(threads.map(lambda _: _outcome(open_path), range(256)))
    assert set(found) <= {None, "busy"}
    assert None in found
    other = User(65533, 65533, (65533,), "other")
    assert USERS.path_problem(other, open_path, "directory") is None


def _outcome(path: Path) -> str | None:
    try:
        return USERS.path_problem(NOBODY, path, "directory")
    except Unavailable:
        return "busy"


# --- Below a directory that another user can change


@pytest.fixture
def lineage(open_path: Path) -> Iterator[int]:
    """An open directory of nobody's, with a file, a directory, and what must not be reached from it."""
    (open_path / "secret").write_text("s3cret")
    (open_path / "secret").chmod(0o600)
    inside = open_path / "lineage"
    (inside / "step").mkdir(parents=True)
    (inside / "step" / "state.pt").write_text("weights")
    (inside / "step" / "link").symlink_to("../../secret")
    (inside / "away").symlink_to("..")
    os.mkfifo(inside / "pipe")
    os.link(open_path / "secret", inside / "step" / "hard")
    descriptor = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_files_below_an_open_directory_are_opened(lineage: int) -> None:
    with os.fdopen(open_beneath(lineage, "step/state.pt")) as file:
        assert file.read() == "weights"
    step = open_beneath(lineage, "step")
    assert "state.pt" in os.listdir(step)  # noqa: PTH208  a descriptor is no path
    os.close(step)


@pytest.mark.parametrize(
    "name",
    ["../secret", "away/secret", "step/link", "away", "pipe", "", ".", "step/../step", "/etc/passwd", "a\0"],
)
def test_nothing_leads_out_of_an_open_directory(lineage: int, name: str) -> None:
    with pytest.raises(PathRefusedError):
        open_beneath(lineage, name)


@needs_root
@pytest.mark.usefixtures("lineage")
def test_a_hard_link_to_a_file_of_another_user_stays_shut(open_path: Path) -> None:
    archive = USERS.archive_as_owner(Owner(65534, 65534, "nobody"), open_path, "lineage/step/hard")
    with closing(archive), archive.stream.makefile("rb") as stream:
        assert stream.read() == b""
        assert "you do not have permission" in str(archive.problem())


@needs_root
@pytest.mark.usefixtures("lineage")
def test_what_cannot_be_read_is_told_and_costs_no_other_file_its_copy(open_path: Path) -> None:
    for name, mode in (("shut", 0o700), ("listed", 0o744)):
        (open_path / "lineage" / name).mkdir()
        (open_path / "lineage" / name / "file").touch()
        (open_path / "lineage" / name).chmod(mode)
    archive = USERS.archive_as_owner(Owner(65534, 65534, "nobody"), open_path, "lineage")
    with closing(archive), archive.stream.makefile("rb") as stream:
        content = BytesIO(stream.read())
        assert archive.problem() is None
    with tarfile.open(fileobj=content) as tar:
        left_out = {each.name for each in tar if LEFT_OUT in each.pax_headers}
        assert left_out == {"./shut", "./listed/file", "./step/hard"}
        assert {"./step/state.pt", "./step/link", "./away"} <= set(tar.getnames())


# --- Attacks: ids that a change of rights passes over


@needs_root
@pytest.mark.parametrize("field", ["uid", "gid", "groups"])
@pytest.mark.parametrize("number", [-1, 2**32 - 1, 2**32, 2**33])
@pytest.mark.parametrize("cpu_s", [None, 10])
def test_a_process_that_would_stay_root_opens_nothing(
    closed: tuple[Path, int], field: str, number: int, cpu_s: int | None
) -> None:
    packet = {"uid": 65534, "gid": 65534, "groups": [65534], "cpu_s": cpu_s}
    packet |= {field: [number] if field == "groups" else number}
    mine, theirs = socket.socketpair()
    with mine:
        with theirs:
            socket.send_fds(USERS._running().requests, [json.dumps(packet).encode()], [theirs.fileno()])
        files = CALLS.proxy("user", lambda request, given: _exchange(mine, request, given))
        with pytest.raises((Disconnected, OSError)):  # no answer, and no descriptor
            files.open_path(closed[0] / "secret", "file")


def _exchange(connection: socket.socket, request: bytes, given: tuple[int, ...]) -> tuple[bytes, list[int]]:
    send(connection, request, *given)
    return receive(connection, 1024**2)


@needs_root
def test_a_child_proves_that_it_is_its_user() -> None:
    """All ids, all sets of capabilities and the wall against new rights, as the kernel says them."""
    child = (
        "import sys; from pathlib import Path; from runner.base.identity import become\n"
        "become(64123, 64124, [64124, 64125]); print(Path('/proc/self/status').read_text())"
    )
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
    status = {name: value.split() for name, _, value in (line.partition(":") for line in said.splitlines())}
    assert status["Uid"] == ["64123"] * 4
    assert status["Gid"] == ["64124"] * 4
    assert status["Groups"] == ["64124", "64125"]
    assert [int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
    assert status["NoNewPrivs"] == ["1"]


@needs_root
def test_a_change_that_the_kernel_does_not_make_is_noticed() -> None:
    child = (
        "import os; from runner.base.identity import become\n"
        "os.setresuid = lambda *ids: None\n"
        "try:\n    become(64123, 64123, [])\nexcept PermissionError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
    assert said.startswith("this process cannot become a user: ")
