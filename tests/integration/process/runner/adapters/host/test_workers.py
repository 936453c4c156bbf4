"""Workers: what a user has written is read by a process of theirs, and costs nobody else anything."""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runner.adapters.host import users as module
from runner.adapters.host.set_aside import remove
from runner.adapters.host.users import HostUsers
from runner.adapters.host.worker import CALLS, CPU_S, MEMORY_BYTES
from runner.adapters.host.workers import Workers
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.textfile import FileError
from runner.core.ports.users import Owner, User
from runner.files.required import MissingFile
from runner.files.submission import Submission
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

ROOT = os.geteuid() == 0
NOBODY = User(65534, 65534, (65534,), "nobody")
OTHER = User(64123, 64123, (64123,), "other")
JOB = b"workload: {kind: program, command: [echo]}\n"
needs_root = pytest.mark.skipif(not ROOT, reason="only root can start workers of others")


@pytest.fixture
def users() -> Iterator[HostUsers]:
    made = HostUsers()
    yield made
    made.close()


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def who(users: HostUsers) -> User:
    return NOBODY if ROOT else users.find_user(os.getuid(), os.getgid())


def submission(place: Path, text: bytes = JOB) -> Submission:
    return Submission(str(place / "job.yaml"), text, shown="job.yaml")


class NoWorker(Exception):
    """No process of a user is there, or it has just ended."""


def status(users: HostUsers, who: User) -> dict[str, list[str]]:
    """Return what the kernel says of the children of the spawner that are this user's."""
    spawner = users._running().process
    assert spawner is not None
    for pid in Path(f"/proc/{spawner.pid}/task/{spawner.pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
            if found["Uid"][0] == str(who.uid) and found["State"][0] != "Z":
                return found
    raise NoWorker


@pytest.mark.parametrize("packet", [b"5", b'{"uid": 1e999}', b'{"uid": []}', b"[" * 60_000], ids=range(4))
def test_an_odd_request_does_not_end_the_process_that_starts_workers(
    users: HostUsers, who: User, place: Path, packet: bytes
) -> None:
    users.read_jobs(who, submission(place))
    spawner = users._running()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        socket.send_fds(spawner.requests, [packet], [theirs.fileno()])
        theirs.close()
        assert mine.recv(1) == b""  # it has been looked at
    assert users._running() is spawner
    users.read_jobs(who, submission(place))


def test_a_job_file_comes_back_as_values(users: HostUsers, who: User, place: Path) -> None:
    text = JOB + b"matrix: {values: {seed: [1, 2, 3]}}\n"
    found = users.read_jobs(who, submission(place, text))
    jobs = tuple(
        found.jobs(place / "job.yaml", lambda number, path: users.find_place(who, text, number, path))
    )
    assert [job.seed for job in jobs] == [1, 2, 3]
    assert found.policy(jobs[0])
    assert jobs[2].origin.problem(("seed",), "is odd").at == (2, 32)


def test_problems_are_told_at_their_places(users: HostUsers, who: User, place: Path) -> None:
    with pytest.raises(FileError) as caught:
        users.read_jobs(who, submission(place, JOB + b"mounts: [{source: no, target: /data/x}]\n"))
    assert caught.value.lines == (f"job.yaml:2:19: mounts[0].source: {place}/no: does not exist",)
    with pytest.raises(UsageError, match="path: must be absolute"):
        users.read_jobs(who, Submission("job.yaml", JOB))


@needs_root
def test_a_worker_has_the_rights_of_its_user_and_no_others(users: HostUsers, place: Path) -> None:
    users.read_jobs(NOBODY, submission(place))
    found = status(users, NOBODY)
    assert found["Uid"] == ["65534"] * 4
    assert found["Gid"] == ["65534"] * 4
    assert [int(found[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
    assert found["NoNewPrivs"] == ["1"]
    limits = Path(f"/proc/{found['Pid'][0]}/limits").read_text()
    assert f"Max address space         {MEMORY_BYTES}" in limits
    assert "Max processes             0" in limits
    assert "Max file size             0" in limits
    assert "Max core file size        0" in limits


@needs_root
def test_what_its_user_may_not_read_a_worker_does_not_read(users: HostUsers, place: Path) -> None:
    secret = place / "policy.yaml"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    with pytest.raises(FileError) as caught:
        users.read_jobs(NOBODY, submission(place, JOB + b"policy: ./policy.yaml\n"))
    assert "s3cret" not in str(caught.value)
    assert "permission" in str(caught.value)
    with pytest.raises(MissingFile, match="permission"):
        users.read_requirements(NOBODY, place, "policy.yaml")


def test_requirements_come_back_as_values(users: HostUsers, who: User, place: Path) -> None:
    (place / "requirements.txt").write_text("tqdm\n-r more.txt\nfoo bar\n")
    (place / "more.txt").write_text("idna>=3\n")
    found = users.read_requirements(who, place, "requirements.txt")
    assert [each.line.text for each in found.lines] == ["tqdm", "idna>=3"]
    assert [each.placed.line.number for each in found.mistakes] == [3]
    with pytest.raises(MissingFile):
        users.read_requirements(who, place, "absent.txt")


def test_a_dockerfile_is_checked_by_a_worker(users: HostUsers, who: User, place: Path) -> None:
    (place / "Dockerfile").write_text("FROM ${BASE}\nADD http://127.0.0.1/x /x\n")
    with pytest.raises(FileError) as caught:
        users.check_dockerfile(who, place, "Dockerfile", frozenset())
    [line] = caught.value.lines
    assert line.startswith("Dockerfile:2:1: ")
    (place / "Dockerfile").write_text("ARG BASE=x\nFROM ${BASE}\nRUN true\n")
    [warning] = users.check_dockerfile(who, place, "Dockerfile", None)
    assert warning.startswith("Dockerfile:1:1: ARG BASE=x: ")


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "packages = 5"])
def test_a_lock_that_is_none_is_one_line(users: HostUsers, who: User, place: Path, text: str) -> None:
    (place / "pylock.toml").write_text(text)
    with pytest.raises(FileError) as caught:
        users.read_requirements(who, place, "pylock.toml")
    assert len(caught.value.lines) == 1


def test_a_text_that_takes_too_long_ends_its_worker_alone(
    users: HostUsers, who: User, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of half a million parts is quadratic for the parser of TOML; the kernel ends it.

    Its limit is looked at, and the kernel's signal sent at once: to compute until then shows nothing more.
    The parser of Python 3.14 gives up by itself.
    """
    monkeypatch.setattr(module, "TEXT_S", patience(CPU_S * 20))
    (place / "pylock.toml").write_text("a." * 500_000 + "a = 1\n")
    users.read_jobs(OTHER if ROOT else who, submission(place))
    with ThreadPoolExecutor() as threads:
        hostile = threads.submit(users.read_requirements, who, place, "pylock.toml")
        until(lambda: hostile.done() or _processor_time_s(users, who) > 1, "it parses")
        with suppress(NoWorker, FileNotFoundError, ProcessLookupError):  # it may be done meanwhile
            pid = int(status(users, who)["Pid"][0])
            limits = Path(f"/proc/{pid}/limits").read_text()
            [soft_s] = re.findall(r"^Max cpu time +(\d+) ", limits, re.MULTILINE)
            assert int(soft_s) <= 2 * CPU_S
            os.kill(pid, signal.SIGXCPU)
        if ROOT:
            for _ in range(3):
                assert users.read_jobs(OTHER, submission(place)).first.name == "job"
        with pytest.raises(UsageError, match=r"^pylock.toml: (takes more time or memory|has too many)"):
            hostile.result()
    assert users.read_jobs(who, submission(place)).first.name == "job"


def _processor_time_s(users: HostUsers, who: User) -> float:
    """Return what a worker has computed; 0 before there is one."""
    try:
        pid = status(users, who)["Pid"][0]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (NoWorker, FileNotFoundError, ProcessLookupError):
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_worker_that_is_killed_loses_nothing(users: HostUsers, who: User, place: Path) -> None:
    users.read_jobs(who, submission(place))
    for pid in status_pids(users):
        os.kill(pid, signal.SIGKILL)
    assert users.read_jobs(who, submission(place)).first.name == "job"


def status_pids(users: HostUsers) -> list[int]:
    spawner = users._running().process
    assert spawner is not None
    children = Path(f"/proc/{spawner.pid}/task/{spawner.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def test_a_worker_is_used_again(users: HostUsers, who: User, place: Path) -> None:
    users.read_jobs(who, submission(place))
    before = status_pids(users)
    for _ in range(5):
        users.read_jobs(who, submission(place))
    assert status_pids(users) == before


def test_jobs_that_are_too_large_together_are_refused(users: HostUsers, who: User, place: Path) -> None:
    large = json.dumps("x" * 400_000)
    text = f"workload: {{kind: program, command: [echo]}}\nenvironment: {{A: a, B: {large}}}\n"
    text += f"matrix: {{values: {{environment.A: {json.dumps([str(n) for n in range(200)])}}}}}\n"
    with pytest.raises((Refused, FileError)) as caught:
        users.read_jobs(who, submission(place, text.encode()))
    assert len(str(caught.value)) < 4000


@pytest.mark.parametrize("answer", [b"{}", b"[", b'{"error":5}', b'{"value": {"first": {"name": "../x"}}}'])
def test_an_answer_of_another_shape_is_no_answer(
    users: HostUsers, who: User, place: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "_ask", lambda *_: (answer, []))
    with pytest.raises(Unavailable, match=r"^job.yaml: the process that reads it gave no answer of use"):
        users.read_jobs(who, submission(place))


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(Refused):
        CALLS.do({"user": None}, b'{"op": "user.no_such"}', [])


# --- what a program has left, as ``runner cp`` reads it


@pytest.fixture
def deep(place: Path, who: User) -> Iterator[Path]:
    """3,000 directories below each other."""
    top = here = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", 0o755, dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here) if here != top else None
        here = inner
    os.close(here)
    os.chown(place, who.uid, who.gid) if ROOT else None
    yield place
    remove(top, "d")
    os.close(top)


def test_an_archive_of_directories_of_any_depth_is_refused_in_one_line(
    users: HostUsers, who: User, deep: Path
) -> None:
    archive = users.archive_as_owner(Owner(who.uid, who.gid, who.name), deep, "d")
    with closing(archive), archive.stream.makefile("rb") as stream:
        while stream.read(1024**2):
            pass
        problem = archive.problem()
    assert problem is not None
    assert problem.endswith(": File name too long")
    assert len(problem) < 200
