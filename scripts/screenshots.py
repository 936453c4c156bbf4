"""Generate the pictures in docs/images: a terminal and a browser that show a busy machine.

The machine is simulated: a compiled ``libnvidia-ml.so.1`` reports the content of a file, and programs report
steps as a trainer does but train nothing.  Everything else is real: the daemon, the users' jobs
as processes, the commands, the terminal (xterm on an X server without a screen).

Requires root (jobs of several users), and: cc, unshare; for the terminal xterm, Xvfb, import and convert
(ImageMagick); for the browser chromium.  ``screenshots.py terminal`` or ``dashboard`` makes one kind alone.
"""

import io
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
MOST_PAGE_BYTES: Final = 120_000
SAMPLED_S: Final = 12
"""Until the daemon has looked at all jobs."""

DRAWN_MS: Final = 1500
"""Until a page has drawn its curves."""

DISPLAY: Final = ":87"
PYTHON: Final = "/usr/bin/python3"
USERS: Final = ("ada", "bob", "cyd", "dan", "eve")
FIRST_UID: Final = 20001
TAKEN_UP: Final = "RUNNER_SCREENSHOTS_USERS"
"""Set once this script runs where those users exist."""

PROGRAM: Final = """
import json, math, os, random, sys, time
total, rate, wait, phase, pace = sys.argv[1:]
total, rate, wait, pace = int(total), float(rate), float(wait), float(pace)
slope = float(os.environ.get("SLOPE", "1")) * (0.9 if os.environ.get("ORDER") == "sorted" else 1)
step, place = int(total * 0.31), os.environ["RUNNER_ATTEMPT_DIR"]
chance = random.Random(int(slope * 1000) + total)


def report(step, at):
    loss = 2.1 / slope + 3.2 * math.exp(-step / total * 14 * slope) + chance.gauss(0, 0.03)
    said = {"time": at, "step": step, "loss": loss, "items_per_s": rate * chance.uniform(0.97, 1.02)}
    said["gradient_norm"] = 0.4 + math.exp(-step / total * 9) + abs(chance.gauss(0, 0.05))
    with open(place + "/metrics.jsonl", "a") as file:
        file.write(json.dumps(said) + chr(10))


if phase == "train":
    for number in range(200):
        report(step * number // 200, time.time() - (200 - number) * 60)
while True:
    said = {"phase": phase, "time": time.time(), "step": step, "total_steps": total, "loss": 2.1}
    if phase == "train":
        said |= {"items_per_s": rate, "data_wait": wait, "parts": {"data": wait}}
        report(step, time.time())
        print(f"step {step}/{total}  {rate:,.0f} items/s", flush=True)
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


SWEEP: Final = f"""name: rates
workload:
  kind: program
  command: [{PYTHON}, play.py, "2000", "900", "0.02", train, "2"]
  code: .
resources: {{cpus: 2, memory: 4GiB, time_limit: 6h}}
matrix:
  values:
    environment.SLOPE: ["0.7", "1.0", "1.4", "1.9"]
    environment.ORDER: [shuffled, sorted]
"""
"""Eight jobs with curves of their own."""

SWEPT: Final = 8
COMPARED: Final = 4
COLOURS: Final = 200
"""Of a picture of a page, which has few."""


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

    def play_sweep(self) -> None:
        """Submit the jobs of a matrix, and kill an attempt of another job."""
        path = self.root / "play/rates.yaml"
        path.write_text(SWEEP)
        client = Client(Endpoint(str(self.root / "state/runner.sock"), None))
        client.submit(str(path), path.read_bytes(), None)
        until(lambda: len(self._running()) == len(RUNNING) + SWEPT, "the jobs of the matrix run")
        self.runner("kill", "steps-imu", "--signal", "KILL")
        until(
            lambda: len(json.loads(self.runner("show", "steps-imu", "--json"))["attempts"]) > 1, "it resumes"
        )
        time.sleep(SAMPLED_S)

    def shoot_pages(self) -> None:
        """Save pictures of the dashboard in both colour schemes."""
        from playwright.sync_api import sync_playwright

        command = [str(self.root / "runner"), "dash", "--no-open", "--listen", "0"]
        jobs = {
            each["name"]: each["id"] for each in map(json.loads, self.runner("list", "--json").splitlines())
        }
        rates = sorted((int(number) for name, number in jobs.items() if name.startswith("rates")))
        pages = {
            "machine": "/",
            "job": f"/jobs/{jobs['steps-imu']}",
            "sweep": f"/sweeps/{rates[0]}",
            "compare": "/compare?" + "&".join(f"job={each}" for each in rates[::2][:COMPARED]),
        }
        with (
            subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as dash,
            sync_playwright() as playwright,
        ):
            link = "" if dash.stdout is None else dash.stdout.readline().strip()
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            try:
                page = browser.new_context(viewport={"width": 1200, "height": 760}).new_page()
                page.goto(link)
                for name, path in pages.items():
                    for scheme in ("light", "dark"):
                        page.emulate_media(color_scheme=scheme)
                        page.goto(link.partition("/login")[0] + path)
                        page.wait_for_timeout(DRAWN_MS)
                        self._keep(page.screenshot(), IMAGES / f"dashboard-{name}-{scheme}.png")
            finally:
                browser.close()
                dash.terminate()

    def _keep(self, picture: bytes, path: Path) -> None:
        from PIL import Image

        with Image.open(io.BytesIO(picture)) as image:
            image.convert("RGB").quantize(COLOURS).save(path, optimize=True)
        size_bytes = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {size_bytes // 1000} kB")
        if size_bytes > MOST_PAGE_BYTES:
            sys.exit(f"screenshots: {path} is larger than {MOST_PAGE_BYTES} bytes")

    def _running(self) -> list[dict[str, Any]]:
        return [each for each in self.overview()["jobs"] if each["state"] == "running"]

    def end(self) -> None:
        """Cancel all jobs, so that no program is left."""
        with suppress(subprocess.CalledProcessError):
            self.runner("cancel", "--sweep", "rates-1")
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


def until(look: Any, what: str) -> None:
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
    again = f"{binds} && exec {sys.executable} {Path(__file__).resolve()} {' '.join(sys.argv[1:])}"
    environment = {**os.environ, TAKEN_UP: str(directory), "PYTHONPATH": str(ROOT)}
    os.execvpe("unshare", ["unshare", "--mount", "sh", "-c", again], environment)  # noqa: S606


def missing(programs: Sequence[str]) -> list[str]:
    return [each for each in programs if shutil.which(each) is None]


def shoot_terminal(stage: Stage) -> None:
    with x_server():
        stage.shoot("top", "runner top", 26)
        stage.shoot("list", "runner list", 17)
        if "gpus" in COMMANDS:
            stage.shoot("gpus", "runner gpus", 12)


def main() -> None:
    """Generate the pictures."""
    kinds = sys.argv[1:] or ["terminal", "dashboard"]
    programs = ["cc", "unshare"]
    programs += ["xterm", "Xvfb", "import", "convert"] if "terminal" in kinds else []
    programs += ["chromium"] if "dashboard" in kinds else []
    if os.geteuid() != 0 or (wanted := missing(programs)):
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
            if "terminal" in kinds:
                shoot_terminal(stage)
            if "dashboard" in kinds:
                stage.play_sweep()
                stage.shoot_pages()
        finally:
            stage.end()
    shutil.rmtree(root)
    shutil.rmtree(os.environ[TAKEN_UP])


if __name__ == "__main__":
    main()
