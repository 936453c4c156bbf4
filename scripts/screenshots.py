"""Generate the pictures in docs/images: a terminal that shows a busy machine.

The machine is simulated: a compiled ``libnvidia-ml.so.1`` reports the content of a file, and programs report
steps as a trainer does but train nothing.  Everything else is real: the daemon, the users' jobs
as processes, the commands, the terminal (xterm on an X server without a screen).

Requires root (jobs of several users), and: cc, unshare, xterm, Xvfb, import and convert (ImageMagick).
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.cli.main import COMMANDS
from runner.client.autostart import Endpoint
from runner.client.client import Client

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs/images"
GIB: Final = 1024**3
MOST_BYTES: Final = 150_000
DISPLAY: Final = ":87"
PYTHON: Final = "/usr/bin/python3"
USERS: Final = ("ada", "bob", "cyd", "dan", "eve")
FIRST_UID: Final = 20001
TAKEN_UP: Final = "RUNNER_SCREENSHOTS_USERS"
"""Set once this script runs where those users exist."""

PROGRAM: Final = """
import json, os, sys, time
total, rate, wait, phase, pace = sys.argv[1:]
total, rate, wait, pace = int(total), float(rate), float(wait), float(pace)
step, place = int(total * 0.31), os.environ["RUNNER_ATTEMPT_DIR"]
while True:
    said = {"phase": phase, "time": time.time(), "step": step, "total_steps": total, "loss": 2.1}
    if phase == "train":
        said |= {"items_per_s": rate, "data_wait": wait, "parts": {"data": wait}}
        step += 1
    with open(place + "/status.part", "w") as file:
        json.dump(said, file)
    os.replace(place + "/status.part", place + "/status.json")
    time.sleep(1 / pace)
"""


@dataclass(frozen=True)
class Played:
    """A job, and the figures of its devices."""

    user: str
    name: str
    gpus: int
    arguments: str = "20000 5120 0.03 train 3"
    util: tuple[int, ...] = ()
    full: float = 0.0
    more: str = ""
    limit: str = "6h"

    def text(self) -> str:
        accelerator = "accelerator: cuda\n" if self.gpus else ""
        command = f"[{PYTHON}, play.py, {', '.join(json.dumps(each) for each in self.arguments.split())}]"
        return (
            f"name: {self.name}\n{accelerator}{self.more}"
            f"workload: {{kind: program, command: {command}, code: .}}\n"
            f"resources: {{cpus: 4, memory: 24GiB, gpus: {self.gpus}, time_limit: {self.limit}}}\n"
        )


RUNNING: Final = (
    Played("ada", "chat-7b-tune", 4, "12000 48300 0.02 train 2", (97, 96, 98, 97), 0.91),
    Played("bob", "photos-night", 1, "90000 410 0.83 train 7", (23,), 0.34, limit="10h"),
    Played("cyd", "graph-forecast", 1, "4000 0 0 compile 1", (3,), 0.12, limit="90m"),
    Played("dan", "pairs-large", 1, "30000 9150 0.08 train 5", (88,), 0.66, limit="4h"),
    Played("eve", "steps-imu", 0, "8000 21500 0.11 train 4"),
)
WAITING: Final = (
    Played("bob", "photos-whole", 4),
    Played("eve", "chat-13b-tune", 8, more="priority: 70\n"),
    Played("cyd", "graph-sweep-1", 2),
    Played("dan", "pairs-small", 2, more="priority: 30\n"),
)


@dataclass
class Stage:
    """A directory with a daemon and the file of the simulated driver."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.root / "driver"),
            "RUNNER_FAKE_NVML": str(self.root / "devices.txt"),
            "RUNNER_STATE_DIR": str(self.root / "state"),
            "RUNNER_SETTINGS": str(self.root / "settings.yaml"),
            "PYTHONPATH": str(ROOT),
            "DISPLAY": DISPLAY,
            "PATH": f"{self.root}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
        }

    def build(self) -> None:
        """Create the driver, the program, the settings and a command named ``runner``."""
        (self.root / "driver").mkdir()
        library = self.root / "driver/libnvidia-ml.so.1"
        source = ROOT / "tests/fakes/gpu/nvml/nvml.c"
        flags = ("-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
        subprocess.run(["cc", *flags, "-o", library, source], check=True)
        settings = {
            "executor": "process", "cpus": 64, "memory_bytes": 512 * GIB, "watch_every_s": 1,
            "alarm": {"window_s": 15},
        }  # fmt: skip
        (self.root / "settings.yaml").write_text(json.dumps(settings))
        (self.root / "play").mkdir()
        (self.root / "play/play.py").write_text(PROGRAM)
        command = self.root / "runner"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m runner.cli.main "$@"\n')
        command.chmod(0o755)
        self.devices({})

    def devices(self, busy: dict[int, tuple[int, float]]) -> None:
        """Set the load that the driver reports for devices: number -> (utilisation, share of memory)."""
        heads, states = [], []
        for number in range(8):
            uuid, (util, full) = f"GPU-{number:08x}", busy.get(number, (0, 0.007))
            heads.append(f"gpu {uuid} {80 * GIB} NVIDIA H100 80GB HBM3\n")
            bus, used = f"00000000:{0x17 + 16 * number:02X}:00.0", int(80 * GIB * full)
            watts, degrees = 70 + 6 * util, 31 + util // 2
            states.append(
                f"is {uuid} bus={bus} util={util} used={used} recovery=0 power={watts} temp={degrees}\n"
            )
        part = self.root / "devices.part"
        part.write_text("".join(heads + states))
        part.replace(self.root / "devices.txt")

    def runner(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.root / "runner", *arguments],
            check=True, stdout=subprocess.PIPE, text=True, env=self.environment, cwd=self.root,
        )  # fmt: skip
        return done.stdout

    def overview(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.runner("top", "--json"))
        return found

    def submit(self, job: Played) -> None:
        """Submit a job as its user, who need not be able to start this Python."""
        path, uid = self.root / "play" / f"{job.name}.yaml", FIRST_UID + USERS.index(job.user)
        path.write_text(job.text())
        text, client = path.read_bytes(), Client(Endpoint(str(self.root / "state/runner.sock"), None))
        child = os.fork()
        if not child:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            client.submit(str(path), text, None)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"screenshots: {job.name} was not accepted")

    @contextmanager
    def daemon(self) -> Iterator[None]:
        with (self.root / "daemon.log").open("ab") as log:
            command = [str(self.root / "runner"), "serve", "--state-dir", str(self.root / "state")]
            with subprocess.Popen(command, env=self.environment, stdout=log, stderr=log) as daemon:
                try:
                    until((self.root / "state/runner.sock").exists, "the daemon answers")
                    yield
                finally:
                    daemon.terminate()

    def play(self) -> None:
        """Submit all jobs, and set the load of their devices."""
        for job in RUNNING:
            self.submit(job)
        until(lambda: len(self._running()) == len(RUNNING), "all of the first jobs run")
        for job in WAITING:
            self.submit(job)
        until(lambda: self.overview()["queue_length"] == len(WAITING), "the others wait")
        numbers = {each["uuid"]: number for number, each in enumerate(self.overview()["devices"])}
        busy: dict[int, tuple[int, float]] = {}
        for found in self._running():
            job = next(each for each in RUNNING if each.name == found["name"])
            busy |= {
                numbers[uuid]: (util, job.full) for uuid, util in zip(found["gpus"], job.util, strict=True)
            }
        self.devices(busy)
        if "gpus" in COMMANDS:
            self.runner("gpus", "drain", "GPU-7", "--reason", "fan is loud, replaced on Friday")
        until(lambda: any(each.get("alarm") for each in self._running()), "an alarm is raised")

    def _running(self) -> list[dict[str, Any]]:
        return [each for each in self.overview()["jobs"] if each["state"] == "running"]

    def end(self) -> None:
        """Cancel all jobs, so that no program is left."""
        for each in reversed((*RUNNING, *WAITING)):
            with suppress(subprocess.CalledProcessError):
                self.runner("cancel", each.name)
        until(lambda: not self._running(), "nothing runs any more")

    # --- pictures

    def shoot(self, name: str, typed: str, lines: int, *, columns: int = 165, wait_s: float = 6) -> None:
        """Type a command into a new terminal, and save a picture of it."""
        script = f"printf '$ {typed}\\n'; {typed}; exec sleep 100"
        look = ("-fa", "DejaVu Sans Mono", "-fs", "10", "-bg", "#10141a", "-fg", "#d5dae2", "-b", "12", "+sb")
        size = ("-geometry", f"{columns}x{lines}+0+0")
        with subprocess.Popen(
            ["xterm", *look, *size, "-e", "sh", "-c", script], env=self.environment, start_new_session=True
        ) as terminal:
            time.sleep(wait_s)
            picture = IMAGES / f"{name}.png"
            shot = self.root / "shot.png"
            subprocess.run(["import", "-window", "root", shot], check=True, env=self.environment)
            trim = ("-bordercolor", "black", "-trim", "+repage", "-strip", "-colors", "48")
            subprocess.run(["convert", shot, *trim, f"PNG8:{picture}"], check=True)
            terminal.terminate()
        size_bytes = picture.stat().st_size
        print(f"{picture.relative_to(ROOT)}: {size_bytes // 1000} kB")
        if size_bytes > MOST_BYTES:
            sys.exit(f"screenshots: {picture} is larger than {MOST_BYTES} bytes")


def until(look: Any, what: str) -> None:  # noqa: ANN401
    """Wait up to a minute until a condition is true."""
    deadline = time.monotonic() + 60
    while not look():
        if time.monotonic() > deadline:
            sys.exit(f"screenshots: not within a minute: {what}")
        time.sleep(0.3)


@contextmanager
def x_server() -> Iterator[None]:
    """An X server without a screen."""
    with subprocess.Popen(["Xvfb", DISPLAY, "-screen", "0", "1600x1200x24"]) as server:
        try:
            until(lambda: Path(f"/tmp/.X11-unix/X{DISPLAY[1:]}").exists(), "the X server answers")  # noqa: S108
            yield
        finally:
            server.terminate()


def take_up_users() -> None:
    """Continue in a mount namespace with its own account files, in which ``USERS`` exist."""
    lines = [Path(path).read_text() for path in ("/etc/passwd", "/etc/group")]
    directory = Path(tempfile.mkdtemp(prefix="screenshots-"))
    for number, name in enumerate(USERS, FIRST_UID):
        lines[0] += f"{name}:x:{number}:{number}::/:/bin/sh\n"
        lines[1] += f"{name}:x:{number}:\n"
    for name, text in zip(("passwd", "group"), lines, strict=True):
        (directory / name).write_text(text)
        (directory / name).chmod(0o644)
    binds = " && ".join(f"mount --bind {directory}/{name} /etc/{name}" for name in ("passwd", "group"))
    again = f"{binds} && exec {sys.executable} {Path(__file__).resolve()}"
    environment = {**os.environ, TAKEN_UP: str(directory), "PYTHONPATH": str(ROOT)}
    os.execvpe("unshare", ["unshare", "--mount", "sh", "-c", again], environment)  # noqa: S606


def missing(programs: Sequence[str]) -> list[str]:
    return [each for each in programs if shutil.which(each) is None]


def main() -> None:
    """Generate every picture."""
    if os.geteuid() != 0 or (wanted := missing(("cc", "unshare", "xterm", "Xvfb", "import", "convert"))):
        sys.exit(
            f"screenshots: wants root, and these programs: {' '.join(wanted) if os.geteuid() == 0 else ''}"
        )
    if TAKEN_UP not in os.environ:
        take_up_users()
    pwd.getpwnam(USERS[0])  # it exists
    IMAGES.mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="stage-"))
    root.chmod(0o755)
    stage = Stage(root)
    stage.build()
    with stage.daemon():
        try:
            stage.play()
            with x_server():
                stage.shoot("top", "runner top", 26)
                stage.shoot("list", "runner list", 17)
                if "gpus" in COMMANDS:
                    stage.shoot("gpus", "runner gpus", 12)
        finally:
            stage.end()
    shutil.rmtree(root)
    shutil.rmtree(os.environ[TAKEN_UP])


if __name__ == "__main__":
    main()
