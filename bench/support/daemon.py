"""A daemon with its own state directory, and the requests that the benchmarks send to it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals import container
from bench.support.interleave import wait_for
from bench.support.jobfile import CPUS, job_text
from bench.support.result import CannotMeasure
from runner.adapters.launch import attempt_name
from runner.base.errors import RunnerError
from runner.client.autostart import Endpoint, NoDaemon, connect
from runner.client.client import Client
from runner.client.types import JobDetail, JobEvent
from runner.core.ports.executor import Key

START_LIMIT_S: Final = 60.0
STATE_LIMIT_S: Final = 900.0  # the first job may wait for its image to be built
ANSWER_POLL_S: Final = 0.002
FOREVER: Final = 10**9  # steps


@dataclass(slots=True)
class BenchDaemon:
    """A daemon whose resources suffice for one job, so that a second one must queue."""

    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def client(self) -> Client:
        return Client(Endpoint(str(socket_path(self.directory)), None))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a command use this daemon."""
        others = {name: text for name, text in os.environ.items() if name != "RUNNER_SOCKET"}
        return others | {"RUNNER_STATE_DIR": str(self.directory)}

    def in_containers(self) -> bool:
        return str(self.client.version()["executor"]) == "docker"

    def instance(self) -> str:
        return str(self.client.version()["instance"])

    def write(self, text: str, name: str = "job.yaml") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def submit(self, file: Path) -> str:
        """Return the id of the accepted job."""
        return str(self.client.submit(str(file), file.read_bytes(), None)["job"]["id"])

    def next_id(self) -> str:
        """Return the id of the next job; no other client submits to this daemon."""
        newest = self.client.jobs(everything=True, limit=1)
        return str(int(newest[0]["id"]) + 1) if newest else "1"

    def events(self, job: str) -> list[JobEvent]:
        return self.client.events(job, 0)[0]

    def log(self, job: str, attempt: int) -> Path:
        """Return the path of an attempt's log."""
        return self.directory / "jobs" / job / "attempts" / str(attempt) / "log.txt"

    def plan(self, file: Path, image: str) -> container.DockerPlan:
        answer = self.client.submit(str(file), file.read_bytes(), None, dry_run=True)
        return container.make_plan(image, answer)

    def await_state(self, job: str, *states: str) -> JobDetail:
        """Return the job once it is in one of ``states``, woken by its events.

        Raises:
            CannotMeasure: the job ended in another state, or nothing happened for too long.
        """
        deadline, seen = time.monotonic() + STATE_LIMIT_S, 0
        while time.monotonic() < deadline:
            _, seen = self.client.events(job, seen)
            found = self.client.job(job)
            if found["state"] in states:
                return found
            if found["state"] in {"finished", "held"}:
                raise CannotMeasure(f"a job ended before it was measured: {found['why']}")
            _, seen = self.client.events(job, seen, wait_s=5.0)
        raise CannotMeasure(f"a job is not {' or '.join(states)} after {STATE_LIMIT_S:.0f} s")

    def block(self) -> str:
        """Start a job that takes all resources, and pause it, so that other jobs queue; return its id."""
        file = self.write(job_text(name="blocker", steps=FOREVER), "blocker.yaml")
        job = self.submit(file)
        self.await_state(job, "running")
        if self.in_containers():
            container.pause(self.container(job, 1))
        else:
            self.client.act(job, "signal", {"signal": "STOP"})
        return job

    def container(self, job: str, attempt: int) -> str:
        return attempt_name(Key(self.instance(), job, attempt))

    def withdraw(self, job: str) -> None:
        """Wait until a job is queued, and cancel it, so that the next measurement finds an empty queue."""
        self.await_state(job, "queued")
        self.client.act(job, "cancel", {})

    def time_submission(self, submit: Callable[[], str]) -> Callable[[], float]:
        """Return a contestant that times a submission, whose job is cancelled at once."""

        def measure() -> float:
            began = time.perf_counter()
            job = submit()
            took = time.perf_counter() - began
            self.withdraw(job)
            return took

        return measure

    def end(self, job: str) -> None:
        """Cancel a job without grace period, and wait until nothing of it is left."""
        found = self.client.act(job, "cancel", {})["job"]
        if found["state"] != "finished":
            with suppress(RunnerError):  # it may have ended already
                self.client.act(job, "signal", {"signal": "KILL"})
        self.await_state(job, "finished")
        if self.in_containers():
            name = self.instance()
            wait_for("the removal of a container", lambda: not container.containers_of(name), 60, 0.02)

    def clear(self) -> None:
        """Cancel all jobs, the newest first, so that no queued job starts."""
        unfinished = [job["id"] for job in self.client.jobs(ended=False)]
        alive = [self.client.act(job, "cancel", {})["job"] for job in unfinished]
        for job in alive:
            if job["state"] != "finished":
                self._let_go(job["id"], job["attempt"])

    def _let_go(self, job: str, attempt: int) -> None:
        with suppress(CannotMeasure):  # it was not paused
            if self.in_containers():
                container.docker("unpause", self.container(job, attempt))
        with suppress(RunnerError):
            self.client.act(job, "signal", {"signal": "KILL"})
        self.await_state(job, "finished")


def socket_path(directory: Path) -> Path:
    return directory / "runner.sock"


def runner_command() -> list[str]:
    """Return the command of the runner: the installed script if it exists."""
    script = Path(sys.executable).with_name("runner")
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "runner.cli.main"]


def launch_daemon(
    directory: Path, executor: str = "auto", more: str = "", cpus: int = CPUS, python: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a daemon on a directory, without waiting for it.

    ``more`` is added to its settings, and ``python`` to the options of its interpreter.
    """
    settings = directory / "settings.yaml"
    settings.write_text(f"cpus: {cpus}\nexecutor: {executor}\n{more}")
    argv = [sys.executable, "-P", *python, "-m", "runner.cli.main", "serve"]
    argv += ["--state-dir", str(directory), "--settings", str(settings)]
    with (directory / "daemon.log").open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")


def await_first_answer(directory: Path, process: subprocess.Popen[bytes]) -> float:
    """Return the time of the daemon's first answer, on ``time.perf_counter``'s clock.

    Raises:
        CannotMeasure: the daemon exited, or did not answer in time.
    """
    client = Client(Endpoint(str(socket_path(directory)), None))
    socket = client.endpoint.socket

    def answers() -> bool:
        if process.poll() is not None:
            raise CannotMeasure(f"the daemon left: {_last_line(directory / 'daemon.log')}")
        try:
            connect(socket).close()
            return bool(client.version())
        except NoDaemon:
            return False

    return wait_for("the daemon's first answer", answers, START_LIMIT_S, ANSWER_POLL_S)


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def terminate_daemon(process: subprocess.Popen[bytes]) -> None:
    """End a daemon that was started here."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running_daemon(
    directory: Path, executor: str = "auto", more: str = "", cpus: int = CPUS
) -> Iterator[BenchDaemon]:
    """Yield a running daemon; end it and all its jobs afterwards."""
    process = launch_daemon(directory, executor, more, cpus)
    try:
        await_first_answer(directory, process)
        here = BenchDaemon(directory, process)
        instance = here.instance() if here.in_containers() else None
        try:
            yield here
        finally:
            _clean_up(here.clear)
            terminate_daemon(process)
            if instance is not None:
                _clean_up(lambda: _remove_containers(instance))
    finally:
        terminate_daemon(process)


def _clean_up(work: Callable[[], None]) -> None:
    """Clean up and ignore errors, so that an earlier error is not hidden."""
    try:
        work()
    except (CannotMeasure, RunnerError) as error:
        print(f"bench: could not tidy up: {error}", file=sys.stderr)


def _remove_containers(instance: str) -> None:
    left = container.containers_of(instance)
    if left:
        container.docker("rm", "--force", *left)
