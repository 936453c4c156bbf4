"""A real daemon on a state directory of its own, that a test can kill, bring back and talk to.

Nothing here sleeps: ``until`` is the one place that waits, with a deadline and with words
for what did not happen.
"""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import docker

from jobs.contract import RunPaths
from runner.adapters.host.firewall import Firewall
from runner.client.autostart import Endpoint, answers
from runner.client.client import Client
from tests.fakes.daemon import fork_server as nursery
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import docker_client
from tests.fakes.workloads.job_files import JobFiles

T = TypeVar("T")
Json = dict[str, Any]
Arguments: TypeAlias = tuple[str, ...]
Typed: TypeAlias = tuple[int, str, str]

POLL_S: Final = (0.02, 0.1)  # at first, and after some looks: to ask a daemon costs it 5 ms
RUNNER: Final = (sys.executable, "-P", "-m", "runner.cli.main")
PATIENT: Final = ("starting the daemon of ", "waiting for the daemon of ")
_TYPED: Final[set[str]] = set()  # commands that this process has typed as programs
LENDABLE_BYTES: Final = 64 * 1024**3  # more than this host may have: containers reserve nothing


def until(
    look: Callable[[], T | None], what: str, seconds: float = 60.0, *, more: Callable[[], str] = str
) -> T:
    """Return the first true answer; ``what`` names it when none comes in time, and ``more`` explains.

    It comes within so many seconds on a quiet machine, and is waited for with ``patience``.
    """
    pause, deadline = threading.Event(), time.monotonic() + patience(seconds)
    poll_s, longest_s = POLL_S
    while time.monotonic() < deadline:
        answer = look()
        if answer:
            return answer
        pause.wait(poll_s)
        poll_s = min(poll_s * 1.2, longest_s)
    raise AssertionError(f"not within {patience(seconds):.0f} s: {what}\n{more()}")


def _program(arguments: Arguments, where: Path, environ: Mapping[str, str], *, apart: bool) -> Typed:
    """Type a command; return its exit code, what it printed, and what it said beside that if kept apart."""
    done = subprocess.run(
        [*RUNNER, *arguments],
        check=False,
        cwd=where,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if apart else subprocess.STDOUT,
        text=True,
        timeout=patience(),
    )
    return done.returncode, done.stdout, done.stderr or ""


def _forked(arguments: Arguments, where: Path, environ: Mapping[str, str], *, apart: bool) -> Typed:
    """Do the same with a process that has loaded what commands load."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        child = nursery.born(
            RUNNER[-1], *arguments, environ=environ, log=out, errors=err if apart else out, where=where
        )
        child.join(patience())
        if child.exitcode is None:
            child.kill()
            raise AssertionError(f"runner {' '.join(arguments)}: still runs: {out.read_text()}")
        ended = child.exitcode
        child.close()
        return ended, out.read_text(), err.read_text() if apart else ""


@dataclass
class Service(JobFiles):
    """A state directory, the settings of its daemon, and every way to reach it."""

    settings: Mapping[str, object]
    env: dict[str, str] = field(default_factory=dict)
    engine: str = "unix:///var/run/docker.sock"  # the real one, whatever door the daemon uses
    state_name: str = "state"
    jobs: dict[str, str] = field(default_factory=dict)  # every job submitted here, and how it shall end
    _child: BaseProcess | None = None

    def __post_init__(self) -> None:
        self.settings_file.write_text(json.dumps(self.settings))

    @property
    def state(self) -> Path:
        return self.root / self.state_name

    @property
    def socket(self) -> Path:
        return self.state / "runner.sock"

    @property
    def settings_file(self) -> Path:
        return self.root / "settings.yaml"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of a shell of its user."""
        known = {"RUNNER_STATE_DIR": str(self.state), "RUNNER_SETTINGS": str(self.settings_file)}
        others = {k: v for k, v in os.environ.items() if not k.startswith("RUNNER_")}
        return {**others, **known, **self.env}

    # --- the daemon

    def start(self) -> "Service":
        """Start the daemon as a process of ours and return when it answers."""
        self.state.mkdir(exist_ok=True)
        if self.settings.get("daemon_user", "root") != "root":
            for name in {"RUNNER_FAKE_NVML", "LD_LIBRARY_PATH"} & self.env.keys():
                _let_others_pass(Path(self.env[name]))
        self._child = nursery.born(
            "runner.cli.main", "serve", "--state-dir", str(self.state),
            environ=self.environ, log=self.state / "daemon.log",
        )  # fmt: skip
        until(self._answers, "the daemon answers", more=self.log_tail)
        return self

    def _answers(self) -> bool:
        if self._child is not None and self._child.exitcode is not None:
            raise AssertionError(f"the daemon left with {self._child.exitcode}: {self.log_tail()}")
        return answers(str(self.socket))

    def pid(self) -> int | None:
        """Return the pid of the daemon that holds the state, None if none does.

        The kernel's list is asked: to try the lock would be to hold it for a moment.
        """
        try:
            inode = (self.state / "lock").stat().st_ino
        except FileNotFoundError:
            return None
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        owners = [
            int(pid)
            for _, kind, _, _, pid, file, *_ in held
            if (kind, file.rpartition(":")[2]) == ("FLOCK", str(inode))
        ]
        return owners[0] if owners else None

    def told_pid(self) -> int:
        """Return the pid that the daemon tells others: of a daemon in two parts, not that of its helper."""
        return int((self.state / "lock").read_text().split()[0])

    def daemon_pid(self) -> int:
        """Return the pid of the daemon, waiting for one that is just starting."""
        return until(self.pid, "there is a daemon", more=self.log_tail)

    def kill(self) -> None:
        """kill -9 the daemon, whoever started it, and return once it has let go of the state."""
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        self.await_end(pid)

    def await_end(self, pid: int) -> None:
        """Return once a daemon has let go of the state; another may have taken it up."""
        until(lambda: self.pid() != pid, "the daemon is gone", more=self.log_tail)
        self._reap()

    def close(self) -> None:
        """End the daemon and everything that it had started."""
        while (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            self.await_end(pid)
        if (self.state / "store.db").exists():
            with docker_client(self.engine) as client:
                for container in client.api.containers(all=True, filters={"label": [self._label]}):
                    _remove(client, container["Id"])
                for network in client.networks.list(filters={"label": [self._label]}):
                    network.remove()
                    Firewall.remove(f"runner_{self.instance}")

    def _reap(self) -> None:
        if self._child is not None:
            self._child.join(patience())
            self._child.close()
            self._child = None

    def daemon_log(self) -> str:
        try:
            return (self.state / "daemon.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        return "\n".join(self.daemon_log().splitlines()[-15:])

    @contextmanager
    def typing(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that stays, while the test does other things."""
        with subprocess.Popen(
            [*RUNNER, *arguments],
            cwd=self.root,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                yield child
            finally:
                child.kill()

    # --- asking it

    @property
    def client(self) -> Client:
        """A client that never starts a daemon."""
        return Client(Endpoint(str(self.socket), None))

    def runner(self, *arguments: str, code: int | set[int] = 0) -> str:
        """Type a command as a user would, hold it to its exit code, and return all that it printed.

        Without the words of a command that waits for its daemon: whether it says them is a matter of time.
        """
        printed = self._type(*arguments, code=code, apart=False)
        return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith(PATIENT))

    def answer(self, *arguments: str) -> Json:
        """Type a command that answers in JSON, and return that; what it says beside it is not read."""
        return dict(json.loads(self._type(*arguments, apart=True)))

    def _type(self, *arguments: str, apart: bool, code: int | set[int] = 0) -> str:
        """Type a command, the first of its kind as a program, and return what it prints."""
        begin = _forked if arguments[0] in _TYPED else _program
        _TYPED.add(arguments[0])
        ended, printed, beside = begin(arguments, self.root, self.environ, apart=apart)
        said = f"runner {' '.join(arguments)}: exit {ended}: {printed}{beside}\n{self.log_tail()}"
        assert ended in ({code} if isinstance(code, int) else code), said
        return printed

    def submit(self, file: Path, *options: str, end: str = "succeeded") -> str:
        """Submit a job file that shall end like this, and return the job's id."""
        answer = self.answer("submit", str(file), *options, "--json")
        job_id = str(answer["job"]["id"])
        self.jobs[job_id] = end
        return job_id

    def job(self, reference: str) -> Json:
        return dict(self.client.job(reference))

    def state_of(self, reference: str) -> str:
        return str(self.job(reference)["state"])

    def reaches(self, reference: str, state: str, seconds: float = 60.0) -> Json:
        """Return the job once it is in this state."""

        def look() -> Json | None:
            found = self.job(reference)
            return found if found["state"] == state else None

        return until(look, f"job {reference} is {state}", seconds, more=self.log_tail)

    def ends(self, reference: str, seconds: float = 120.0) -> Json:
        """Return the job once nothing more will happen to it by itself."""
        deadline = time.monotonic() + patience(seconds)
        while time.monotonic() < deadline:
            done, job = self.client.wait(reference, 5.0)
            if done:
                return dict(job)
        raise AssertionError(f"job {reference} does not end: {self.job(reference)}; {self.log_tail()}")

    def events(self, reference: str) -> list[Json]:
        return [dict(event) for event in self.client.events(reference, 0)[0]]

    def told(self, reference: str) -> str:
        """Return everything that the events of a job say."""
        return "\n".join(event["text"] for event in self.events(reference))

    # --- what lies on the disk, and in the engine

    def paths(self, job_id: str, attempt: int = 1, lineage: int = 1) -> RunPaths:
        return RunPaths(self.state / "jobs" / job_id, attempt, lineage)

    def log(self, job_id: str, attempt: int = 1) -> str:
        try:
            return self.paths(job_id, attempt).log.read_text()
        except FileNotFoundError:
            return ""

    def prints(self, job_id: str, line: str, attempt: int = 1) -> None:
        """Wait until an attempt has printed a line."""

        def look() -> bool:
            return line in self.log(job_id, attempt).splitlines()

        until(look, f"job {job_id} prints {line!r}", more=lambda: self._story(job_id, attempt))

    def runs(self, job_id: str, line: str, attempt: int = 1) -> None:
        """Wait until an attempt has printed a line and the daemon, which may be later, knows that it runs."""
        self.prints(job_id, line, attempt)
        self.reaches(job_id, "running")

    def _story(self, job_id: str, attempt: int) -> str:
        return f"{self.log(job_id, attempt)[-2000:]}\n{self.log_tail()}"

    @property
    def instance(self) -> str:
        """Return the name of the store in the engine; asked of the file, for a daemon may not be there."""
        with closing(sqlite3.connect(self.state / "store.db")) as store:
            return str(store.execute("SELECT value FROM meta WHERE key = 'instance'").fetchone()[0])

    @property
    def _label(self) -> str:
        return f"runner.instance={self.instance}"

    def containers(self, job_id: str | None = None) -> list[Json]:
        """Return the engine's descriptions of the containers of this daemon, ended ones included."""
        labels = [self._label] + ([f"runner.job={job_id}"] if job_id else [])
        with docker_client(self.engine) as client:
            found = client.api.containers(all=True, filters={"label": labels})
            return [inspected for each in found if (inspected := _inspected(client, each["Id"])) is not None]

    def alive(self, job_id: str) -> bool:
        return any(each["State"]["Running"] for each in self.containers(job_id))

    def container_pid(self, job_id: str) -> int:
        """Return the first process of a running job on this host."""
        [found] = [each for each in self.containers(job_id) if each["State"]["Running"]]
        return int(found["State"]["Pid"])

    def program_pid(self, job_id: str) -> int:
        """Return the program below the container's init and the shell that waits, once it has begun."""
        init = self.container_pid(job_id)

        def look() -> int | None:
            for shell in _children(init):
                ours = (b"env\0--default-signal=", b'/bin/sh\0-c\0exec "$@"\0', _arguments(shell))
                for program in _children(shell)[:1]:  # another one may bring a stop
                    is_program = _arguments(program) and not _arguments(program).startswith(ours)
                    return program if is_program else None
            return None

        return until(look, f"the program of job {job_id} has begun")

    def signal_container(self, job_id: str, number: int) -> None:
        """Signal the first process of a job from outside the runner and the engine, as the kernel would."""
        os.kill(self.container_pid(job_id), number)

    def freeze(self, job_id: str) -> None:
        """Stop a job's program where it is, so that a test has time; only SIGKILL is for it then."""
        os.kill(self.program_pid(job_id), signal.SIGSTOP)

    def thaw(self, job_id: str) -> None:
        os.kill(self.program_pid(job_id), signal.SIGCONT)

    def remove_container(self, job_id: str) -> None:
        """Take a job's container away by force, as somebody who cleans up would."""
        [found] = self.containers(job_id)
        with docker_client(self.engine) as client:
            client.api.remove_container(found["Id"], force=True, v=True)

    # --- what every chaos test ends with

    def assert_whole(self) -> None:
        """No lost job, no job run twice, no orphan container, no leaked allocation."""
        for job_id, end in self.jobs.items():
            assert self.ends(job_id)["outcome"] == end, (self.told(job_id), self.log_tail())
            self._assert_each_attempt_ran_once(job_id)
        until(lambda: not self.containers(), "no container is left", more=lambda: str(self.containers()))
        self._assert_everything_can_be_lent()

    def _assert_each_attempt_ran_once(self, job_id: str) -> None:
        starts = self.paths(job_id).cache / "starts"
        if starts.exists():
            begun = [int(line) for line in starts.read_text().split()]  # "busy" would not be a number
            recorded = [a["number"] for a in self.job(job_id)["attempts"] if a["launched_at"]]
            assert begun == sorted(set(begun)), begun
            assert set(recorded) <= set(begun) | set(self._unborn(job_id)), (begun, recorded)

    def _unborn(self, job_id: str) -> list[int]:
        """Return attempts that were ended before their program could note that it began."""
        return [a["number"] for a in self.job(job_id)["attempts"] if a["exit_code"] in {137, 143, None}]

    def _assert_everything_can_be_lent(self) -> None:
        """A job that wants all there is can only start when nothing is lent any more."""
        resources = {"cpus": 1, "memory": LENDABLE_BYTES}
        job_id = self.submit(self.counting("everything", steps=1, resources=resources))
        assert self.ends(job_id)["outcome"] == "succeeded"
        until(lambda: not self.containers(), "the last container is removed")


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _arguments(pid: int) -> bytes:
    """Return the arguments of a process, nothing of one that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _let_others_pass(path: Path) -> None:
    """Let a daemon that is not root reach what it takes for a driver; pytest closes its directories."""
    for place in (path, *path.parents[:-2]):
        place.chmod(place.stat().st_mode | (0o055 if place.is_dir() else 0o044))


def _remove(client: docker.DockerClient, container: str) -> None:
    """Remove a container that may be going already: the engine ends what a daemon asked for that is gone."""
    with suppress(docker.errors.NotFound):
        try:
            client.api.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code != 409:
                raise
            client.api.wait(container, condition="removed")


def assert_consecutive(log: str) -> None:
    """The log of one counting attempt has no gap and no duplicate."""
    first, *rest = log.splitlines()
    assert first.startswith("begin at "), log
    at = int(first.rpartition(" ")[2])
    steps = [int(line.rpartition(" ")[2]) for line in rest if line.startswith("step ")]
    assert steps == list(range(at + 1, at + 1 + len(steps))), log


@contextmanager
def service(**settings: object) -> Iterator[Service]:
    """A state directory with a daemon that is not started yet; everything is gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="runner-"))
    root.chmod(0o755)
    known: dict[str, object] = {
        "observe_every_s": 0.5,
        "cpus": 64,
        "memory_bytes": LENDABLE_BYTES,
        "pull": None,
        "unknown_uids": "accept",  # the users of tests are made up
        "daemon_user": os.environ.get("TEST_DAEMON_USER", "root"),  # another: the daemon is split in two
    }
    if settings.get("executor") == "slurm":
        known["daemon_user"] = "root"  # jobs are submitted as their users by the daemon itself
    made = Service(root, {**known, **settings})
    try:
        yield made
    finally:
        made.close()
        _unmount_below(root)
        until(lambda: _is_removed(root), f"{root} is removed")


def _is_removed(root: Path) -> bool:
    """Remove a tree in which a shim of an attempt may still write its last file."""
    with suppress(OSError):
        shutil.rmtree(root)
    return not root.exists()


def _unmount_below(root: Path) -> None:
    """Detach what is mounted below ``root``: removing a tree must not reach what is not in it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for point in reversed([point for point in points if point.startswith(f"{root}/")]):
        subprocess.run(["umount", "-l", point], check=True)


def _inspected(client: docker.DockerClient, container: str) -> Json | None:
    with suppress(docker.errors.NotFound):
        inspected: Json = client.api.inspect_container(container)
        return inspected
    return None


def speak(path: Path, question: bytes) -> bytes:
    """Return the answer of a socket to raw bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience())
        connection.connect(str(path))
        connection.sendall(question)
        return connection.recv(65536)
