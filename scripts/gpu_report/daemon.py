"""A real daemon with the process executor on the devices of this machine, and programs that use them.

In a rehearsal the daemon loads a fake NVML library (``tests/fakes/gpu/nvml``).  ``report_memory`` then
tells that library what the programs would use; with a real driver it does nothing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from runner.base.errors import RunnerError
from runner.client.autostart import Endpoint, answers
from runner.client.client import Client
from scripts.gpu_report.context import CannotMeasureHere, Context, environment, source_root
from tests.fakes.gpu.hosts import GIB, NvidiaHost, compile_nvml, h100s

T = TypeVar("T")
Json = dict[str, Any]

POLL_S: Final = 0.05
COMMAND: Final = (sys.executable, "-P", "-m", "runner.cli.main")

HOLDER: Final = """\
import os, sys, threading
amount, real, end = float(sys.argv[1]), sys.argv[2] == "cuda", sys.argv[3]
if real:
    import torch
    torch.empty(int(amount * 2**30), dtype=torch.uint8, device="cuda").fill_(1)
    kept = torch.ones(int(amount * 2**30), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
print("holding", os.getpid(), flush=True)
if end == "abort":
    threading.Event().wait(2)
    os.abort()
threading.Event().wait(600)
"""
"""A program that allocates device memory and keeps it.  Arguments: GIB cuda|cpu stay|abort."""


@dataclass
class Daemon:
    """A running daemon and its devices."""

    context: Context
    root: Path
    host: NvidiaHost | None
    """The devices of the fake NVML library; None with a real driver."""
    process: subprocess.Popen[bytes] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    holder: Path = Path()

    @property
    def python(self) -> str:
        """The interpreter of the jobs; in a rehearsal the system's, which every user can run."""
        return (
            shutil.which("python3", path=os.defpath) if self.context.rehearsal else None
        ) or sys.executable

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def client(self) -> Client:
        return Client(Endpoint(str(self.state / "runner.sock"), None))

    def start(self, settings: Mapping[str, object]) -> None:
        """Start the daemon, and return when it answers."""
        self.state.mkdir(mode=0o755)
        file = self.root / "settings.yaml"
        file.write_text(json.dumps({"executor": "process", **settings}))
        argv = [*COMMAND, "serve", "--state-dir", str(self.state), "--settings", str(file)]
        with (self.root / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self.environ
            )
        self.until(lambda: answers(str(self.state / "runner.sock")), "the daemon answers", 30)

    def close(self) -> None:
        """End the daemon and its jobs."""
        if self.process is None or self.process.poll() is not None:
            return
        try:
            for job in self.client.jobs(limit=1000):
                if job["state"] != "finished":
                    self.client.act(job["id"], "cancel", {})
                    self.client.act(job["id"], "signal", {"signal": "KILL"})
            self.until(
                lambda: all(j["state"] == "finished" for j in self.client.jobs(limit=1000)),
                "all jobs have finished",
                15,
            )
        except (RunnerError, CannotMeasureHere) as error:
            print(f"clean-up failed: {error}", file=sys.stderr)
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def until(self, look: Callable[[], T | None], what: str, limit_s: float) -> T:
        """Poll until ``look`` returns a true value, and return it.

        Raises:
            CannotMeasureHere: the timeout passed, or the daemon exited.
        """
        deadline = time.monotonic() + min(limit_s, max(self.context.left_s, 1))
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise CannotMeasureHere(f"the daemon exited: {self.log_tail()}")
            if answer := look():
                return answer
            time.sleep(POLL_S)
        raise CannotMeasureHere(f"timeout after {limit_s:.0f} s, waiting until {what}; {self.log_tail()}")

    def log_tail(self) -> str:
        return " / ".join((self.root / "daemon.log").read_text(errors="replace").splitlines()[-4:])[-1200:]

    # --- devices

    def devices(self) -> list[Json]:
        found: list[Json] = self.client.get("/v1/devices")["devices"]
        return found

    def device(self) -> Json:
        """Return the first device.

        Raises:
            CannotMeasureHere: the daemon lists no device.
        """
        found = self.devices()
        if not found:
            raise CannotMeasureHere(f"the daemon lists no device; {self.log_tail()}")
        return found[0]

    def reaches(self, *states: str, limit_s: float = 30) -> Json:
        """Wait until the first device is in one of the given states, and return it."""
        last: Json = {}

        def look() -> Json | None:
            nonlocal last
            found = self.devices()
            last = found[0] if found else {}
            return last if last.get("state") in states else None

        try:
            return self.until(look, f"the device is {' or '.join(states)}", limit_s)
        except CannotMeasureHere as error:
            raise CannotMeasureHere(f"{error}; it is {last.get('state')}: {last.get('reason')}") from error

    def report_memory(self, *, used_gib: float, pids: Mapping[int, float]) -> None:
        """Tell the fake NVML library which process uses how much memory."""
        if self.host is None:
            return
        procs = ",".join(f"{pid}:{int(gib * GIB)}" for pid, gib in pids.items()) or None
        self.host[0].say(procs=procs, used=int(used_gib * GIB))
        self.host.write(self.root / "nvml-state")

    # --- jobs

    def submit_holder(self, name: str, gib: float, end: str = "stay", **fields: object) -> str:
        """Submit a job that allocates memory of one device, and return its id."""
        real = self.context.accelerator
        command = [self.python, str(self.holder), str(gib), real, end]
        return self.submit(name, {"kind": "program", "command": command}, **fields)

    def submit(self, name: str, workload: Mapping[str, object], **fields: object) -> str:
        known = {
            "name": name,
            "workload": dict(workload),
            "accelerator": "cuda",
            "resources": {"cpus": 1, "memory": "1GiB", "gpus": 1},
            "stop_grace": "1s",
            "retry": {"backoff": "0s", "max_attempts": 1},
        }
        file = self.root / f"{name}.yaml"
        file.write_text(json.dumps({**known, **fields}))
        return str(self.client.submit(str(file), file.read_bytes(), None)["job"]["id"])

    def job(self, job_id: str) -> Json:
        return dict(self.client.job(job_id))

    def event_text(self, job_id: str) -> str:
        """Return the text of all events of a job."""
        return "\n".join(event["text"] for event in self.client.events(job_id, 0)[0])

    def log(self, job_id: str, attempt: int = 1) -> str:
        try:
            return (self.state / "jobs" / job_id / "attempts" / str(attempt) / "log.txt").read_text()
        except OSError:
            return ""

    def pid_of_holder(self, job_id: str, limit_s: float = 40) -> int:
        """Wait until a job has allocated its memory, and return its process id."""

        def look() -> int | None:
            lines = [line for line in self.log(job_id).splitlines() if line.startswith("holding ")]
            if not lines and self.job(job_id)["state"] in {"finished", "held"}:
                raise CannotMeasureHere(
                    f"the job ended: {self.job(job_id)['why']}; {self.log(job_id)[-600:]}"
                )
            return int(lines[0].split()[1]) if lines else None

        return self.until(look, "the job has allocated memory", limit_s)

    def cancel(self, job_id: str) -> None:
        self.client.act(job_id, "cancel", {})
        self.until(lambda: self.job(job_id)["state"] == "finished", f"job {job_id} is cancelled", 15)


@contextmanager
def daemon(context: Context, **settings: object) -> Iterator[Daemon]:
    """Run a daemon that polls its devices often; stop it and its jobs at the end."""
    root = context.folder("daemon")
    made = Daemon(context, root, h100s(1) if context.rehearsal else None, environ=environment())
    made.environ["RUNNER_STATE_DIR"] = str(made.state)
    if made.host is not None:
        if shutil.which("cc") is None:
            raise CannotMeasureHere("no C compiler for the fake NVML library")
        library = compile_nvml(root / "driver")
        made.host.write(root / "nvml-state")
        made.environ.update(LD_LIBRARY_PATH=str(library), RUNNER_FAKE_NVML=str(root / "nvml-state"))
    made.holder = root / "holder.py"
    made.holder.write_text(HOLDER)
    known = {
        "watch_every_s": 0.5,
        "clean_within_s": 20,
        "observe_every_s": 0.5,
        "memory_bytes": 8 * GIB,
        "cpus": 4,
    }
    try:
        made.start({**known, **settings})
        yield made
    finally:
        made.close()


@contextmanager
def foreign_process(server: Daemon, gib: float) -> Iterator[int]:
    """Run a process that belongs to no job and uses memory of the device; yield its process id."""
    argv = [sys.executable, str(server.holder), str(gib), server.context.accelerator, "stay"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, env=environment(), cwd=source_root(), start_new_session=True, text=True
    ) as process:
        try:
            if process.stdout is None or not process.stdout.readline().startswith("holding"):
                raise CannotMeasureHere("the foreign process could not allocate memory")
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)
