"""A daemon of root in two parts: the part that answers has no rights, and the other one is its helper."""

import contextlib
import os
import pwd
import re
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from runner.adapters.docker.executor import DockerExecutor
from runner.adapters.privileged.state_files import ROOT_DIRECTORIES, share_state
from runner.adapters.privileged.unprivileged import give_up_root
from runner.base.errors import Unavailable, UsageError
from runner.files.settings.model import Settings
from runner.server import split as module
from runner.server.executors import local_executor
from runner.server.split import daemon_user
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.host.users import capabilities, with_uid
from tests.fakes.patience import patience

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")

USER: Final = pwd.getpwnam("games")
BOB: Final = 4321
SHELL: Final = {
    "kind": "program",
    "command": ["/bin/sh", "-c", "id -u; cat token >/dev/null 2>&1 || echo closed"],
}


@pytest.fixture
def daemon() -> Iterator[Service]:
    with service(executor="process", daemon_user=USER.pw_name) as made:
        yield made.start()


def part(daemon: Service) -> int:
    """Return the pid of the part that answers."""
    return int(daemon.client.version()["pid"])


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{field}:"))


def test_the_part_that_parses_holds_no_capability(daemon: Service) -> None:
    pid = part(daemon)
    assert set(capabilities(pid).values()) == {0}, capabilities(pid)
    assert set(capabilities(pid)) == {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}
    assert status(pid, "Uid").split() == [str(USER.pw_uid)] * 4
    assert status(pid, "Gid").split() == [str(USER.pw_gid)] * 4
    assert (status(pid, "Groups"), status(pid, "NoNewPrivs")) == ("", "1")
    assert int(status(pid, "PPid")) == daemon.daemon_pid()  # the helper, which the service manager knows
    assert status(daemon.daemon_pid(), "Uid").split() == ["0"] * 4


def in_the_part(work: Callable[[], None]) -> int:
    """Return the exit code of a process that gives up root as the daemon does, and then works."""
    parent, child = os.getpid(), os.fork()
    if child == 0:
        code = 1
        try:
            give_up_root(USER, parent)
            work()
            code = 0
        except PermissionError:
            code = 77
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def test_whoever_has_given_up_root_opens_no_file_of_another_user_and_no_engine() -> None:
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        closed, engine = Path(place) / "closed", str(Path(place) / "docker.sock")
        closed.write_text("Bob's")
        closed.chmod(0o600)
        os.chown(closed, BOB, BOB)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(engine)
            listener.listen()
            os.chmod(engine, 0o660)  # noqa: PTH101  as the engine makes its own
            attempts: list[Callable[[], object]] = [
                closed.read_bytes,
                lambda: closed.write_text("mine"),
                lambda: connect(engine),
                lambda: Path("/etc/shadow").read_bytes(),
                lambda: os.setresuid(0, 0, 0),
                lambda: os.setgroups([0]),
                lambda: os.chown(place, USER.pw_uid, USER.pw_gid),
                lambda: os.kill(os.getppid(), signal.SIGTERM),
                lambda: Path(f"/proc/{os.getppid()}/mem").read_bytes(),
            ]
            codes = [in_the_part(lambda work=work: (work(), None)[1]) for work in attempts]  # type: ignore[misc]
    assert codes == [77] * len(attempts)
    assert in_the_part(lambda: None) == 0


def test_the_part_that_parses_has_no_open_file_of_root_but_those_it_was_given(daemon: Service) -> None:
    pid, state = part(daemon), daemon.state
    names = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # a descriptor may be closed while they are read
            names.add(Path(entry.path).readlink())
    files = {name for name in names if name.is_absolute() and name.exists() and name.parts[1] != "dev"}
    given = {state / name for name in ("lock", "daemon.log")}
    found = {name for name in files - given if name.stat().st_uid != USER.pw_uid}
    assert {name for name in found if not name.name.startswith("libffi.so")} == set()  # it opens itself


def test_a_process_of_another_user_runs_and_its_run_directory_is_read(daemon: Service) -> None:
    token = daemon.root / "token"
    token.write_text("hush")
    token.chmod(0o600)
    file = daemon.file("bobs", workload=SHELL, resources={"cpus": 1, "memory": "64MiB"})
    code, answer = with_uid(BOB, partial(daemon.client.submit, str(file), file.read_bytes(), None))
    assert code == 0, answer
    assert isinstance(answer, dict)
    job_id = str(answer["job"]["id"])
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.told(job_id)
    assert daemon.runner("logs", job_id) == f"{BOB}\nclosed\n"
    assert daemon.paths(job_id).attempt_dir.stat().st_uid == BOB


def test_a_file_that_a_user_may_not_read_is_not_read_for_him(daemon: Service) -> None:
    token = daemon.root / "token"
    token.write_text("hush")
    token.chmod(0o600)
    os.chown(token, BOB + 1, BOB + 1)
    file = daemon.file("bobs", workload=SHELL, secrets={"token": "token"})
    code, said = with_uid(BOB, partial(daemon.client.submit, str(file), file.read_bytes(), None))
    assert code == 2, said
    assert "you do not have permission to read it" in str(said)


def test_a_daemon_whose_helper_is_killed_ends_and_the_next_one_goes_on(daemon: Service) -> None:
    pid = part(daemon)
    os.kill(daemon.daemon_pid(), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the part that answers has ended")
    until(lambda: daemon.pid() is None, "the state is free")
    daemon.await_end(-1)
    daemon.start()
    assert part(daemon) != pid


def test_a_helper_ends_with_the_part_that_answers_and_says_so(daemon: Service) -> None:
    os.kill(part(daemon), signal.SIGKILL)
    assert daemon._child is not None
    daemon._child.join(patience())
    assert daemon._child.exitcode == 128 + signal.SIGKILL
    assert "daemon.killed" in daemon.daemon_log()
    daemon._reap()


def test_a_signal_to_stop_reaches_the_part_that_answers(daemon: Service) -> None:
    os.kill(daemon.daemon_pid(), signal.SIGTERM)
    assert daemon._child is not None
    daemon._child.join(patience())
    assert daemon._child.exitcode == 0
    assert "daemon.stopped" in daemon.daemon_log()
    assert not daemon.socket.exists()
    daemon._reap()


@pytest.fixture
def impatient() -> Iterator[Service]:
    with service(executor="process", daemon_user=USER.pw_name, stop_within_s=1) as made:
        yield made.start()


def test_a_part_that_cannot_stop_because_its_helper_does_not_answer_ends_in_time_and_says_where_it_waited(
    impatient: Service,
) -> None:
    pid, helper = part(impatient), impatient.daemon_pid()
    os.kill(helper, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGTERM)
        until(lambda: status(pid, "State").startswith("Z"), "the part that answers has ended")
    finally:
        os.kill(helper, signal.SIGCONT)
    assert impatient._child is not None
    impatient._child.join(patience())
    assert impatient._child.exitcode == 1
    log = impatient.daemon_log()
    assert "Timeout (0:00:01)!" in log
    assert "in stop" in log  # the stack of the thread that held it up
    impatient._reap()
    assert impatient.start().pid() is not None


def test_a_part_that_hears_nothing_is_killed_by_its_helper_after_it_should_have_stopped(
    impatient: Service,
) -> None:
    os.kill(part(impatient), signal.SIGSTOP)
    os.kill(impatient.daemon_pid(), signal.SIGTERM)
    assert impatient._child is not None
    impatient._child.join(patience())
    assert impatient._child.exitcode == 128 + signal.SIGKILL
    assert "daemon.stop_overdue" in impatient.daemon_log()
    impatient._reap()


def test_a_state_directory_of_a_whole_daemon_is_taken_over_and_given_back() -> None:
    with service(executor="process", daemon_user="root") as made:
        file = made.file("early", workload=SHELL, resources={"cpus": 1, "memory": "64MiB"})
        job_id = made.start().submit(file)
        made.ends(job_id)
        made.runner("stop")
        assert (made.state / "store.db").stat().st_uid == 0
        for user, uid in ((USER.pw_name, USER.pw_uid), ("root", USER.pw_uid), (USER.pw_name, USER.pw_uid)):
            made._reap()
            made.settings_file.write_text(f'{{"executor": "process", "daemon_user": "{user}"}}')
            made.start()
            assert made.runner("logs", job_id).startswith("65532\n")
            assert (made.state / "store.db").stat().st_uid == uid
            made.runner("stop")
        found = made.state.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o1775)
        assert {(made.state / name).stat().st_uid for name in ROOT_DIRECTORIES} == {0}


# --- who the part without rights is


def test_a_daemon_of_its_own_user_stays_in_one_process() -> None:
    assert daemon_user(Settings(system_wide=False)) is None
    assert daemon_user(Settings(daemon_user="root")) is None


def test_the_usual_user_is_one_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USUAL_USER", USER.pw_name)
    assert daemon_user(Settings()) == USER
    assert daemon_user(Settings(pin_mounts=False)) is None
    monkeypatch.setattr(module, "FIRST_PERSON", USER.pw_uid)  # a person of this name is not the daemon's user
    assert daemon_user(Settings()) is None
    monkeypatch.setattr(module, "USUAL_USER", "nobody-has-this-name")
    assert daemon_user(Settings()) is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(daemon_user="nobody-has-this-name"), "there is no user"),
        (Settings(daemon_user=USER.pw_name, pin_mounts=False), "pin_mounts: false"),
    ],
)
def test_a_user_that_cannot_be_the_daemons_is_refused(settings: Settings, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        daemon_user(settings)


def test_what_others_have_put_into_the_state_directory_is_not_taken_for_roots(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 elsewhere")
    os.chown(tmp_path / "hosts", USER.pw_uid, USER.pw_gid)
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "store.db").write_text("")
    (tmp_path / "shared").write_text("")
    (tmp_path / "again").hardlink_to(tmp_path / "shared")
    share_state(tmp_path, USER)
    assert not (tmp_path / "hosts").exists()
    owners = {name: (tmp_path / name).lstat().st_uid for name in ("passwd", "store.db", "shared", "jobs")}
    assert owners == {"passwd": 0, "store.db": USER.pw_uid, "shared": 0, "jobs": 0}
    assert Path("/etc/passwd").stat().st_uid == 0
    (tmp_path / "jobs").rmdir()
    (tmp_path / "jobs").symlink_to("/etc")
    os.chown(tmp_path / "jobs", USER.pw_uid, USER.pw_gid, follow_symlinks=False)
    with pytest.raises(Unavailable, match="root acts in it"):
        share_state(tmp_path, USER)


def test_root_writes_files_of_containers_where_the_daemons_user_makes_nothing(tmp_path: Path) -> None:
    """A link of the daemon's user would lead root anywhere, and be mounted."""
    for _ in range(2):  # also when it starts again
        share_state(tmp_path, USER)
        executor = local_executor(tmp_path, Settings(), "docker", "abcd")
        assert isinstance(executor, DockerExecutor)
        hosts, accounts = executor.settings.hardening.hosts_file, executor.settings.hardening.accounts
        assert hosts is not None
        assert accounts is not None
        for place in (hosts.parent, accounts):
            assert (place.parent, place.stat().st_uid) == (tmp_path, 0)
            assert place.stat().st_mode & 0o777 == 0o755
            assert place.name in ROOT_DIRECTORIES


@pytest.mark.parametrize("name", ["code", "curves", "places", "a-directory-of-a-later-version"])
def test_every_directory_that_a_daemon_of_root_has_kept_is_taken_over(tmp_path: Path, name: str) -> None:
    inner = tmp_path / name / "inner"
    inner.mkdir(parents=True)
    (inner / "1.json").write_text("{}")
    share_state(tmp_path, USER)
    there = (tmp_path / name, inner, inner / "1.json")
    assert {each.lstat().st_uid for each in there} == {USER.pw_uid}
    assert {(tmp_path / each).lstat().st_uid for each in ROOT_DIRECTORIES} == {0}


def test_what_is_behind_a_link_in_a_directory_that_is_taken_over_stays_roots(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    state = tmp_path / "state"
    (state / "curves").mkdir(parents=True)
    (state / "curves" / "1.json").symlink_to(elsewhere)
    (state / "more").symlink_to(tmp_path)
    share_state(state, USER)
    assert (elsewhere.lstat().st_uid, tmp_path.lstat().st_uid) == (0, 0)
