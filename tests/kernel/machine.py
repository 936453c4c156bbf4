"""The machine of ``scripts/kernel``, which a test may change: its users, units and daemons."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from tests.fakes.daemon.service import until

RUNNER = str(Path(sys.executable).with_name("runner"))
IMAGE = "runner-base:bookworm"
STATE, SOCKET = Path("/var/lib/runner"), Path("/run/runner")

TRAINER = """\
import signal, sys
from pathlib import Path
def save(*_):
    Path("saved").write_text("its last step")
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print(Path("/proc/self/attr/current").read_text().strip(" \\0\\n"), flush=True)
print("ready", flush=True)
while True:
    signal.pause()
"""


def here() -> None:
    """Refuse to change any other machine."""
    assert os.environ.get("RUNNER_OTHER_HOST"), (
        "it changes users and units: scripts/kernel runs it, on its own host"
    )


def ran(*command: str, user: str | None = None, where: Path | None = None, code: int = 0) -> str:
    """Return what a command prints, run by root or in the home of a user."""
    if user is not None:
        home = Path(pwd.getpwnam(user).pw_dir)
        named = {"HOME": str(home), "USER": user, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        assigned = [f"{name}={value}" for name, value in named.items()]
        command = ("runuser", "-u", user, "--", "env", "-i", f"--chdir={where or home}", *assigned, *command)
    done = subprocess.run(
        command,
        check=False,
        cwd=None if user else where,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
    return done.stdout


@contextmanager
def user(name: str, *options: str) -> Iterator[str]:
    ran("useradd", *options, name)
    try:
        yield name
    finally:
        subprocess.run(["pkill", "-KILL", "-u", name], check=False)
        ran("userdel", "--force", "--remove", name) if "--create-home" in options else ran("userdel", name)


@contextmanager
def systemd_daemon(**settings: object) -> Iterator[None]:
    """The unit file that the runner prints, run by the systemd of this machine."""
    Path("/etc/runner").mkdir(exist_ok=True)
    Path("/etc/runner/settings.yaml").write_text(yaml.safe_dump(settings))
    Path("/etc/systemd/system/runner.service").write_text(ran(RUNNER, "serve", "--systemd-unit"))
    ran("systemctl", "daemon-reload")
    ran("systemctl", "start", "runner")
    try:
        until((SOCKET / "runner.sock").exists, "the daemon listens", more=journal)
        yield
    finally:
        ran("systemctl", "stop", "runner")
        shutil.rmtree(STATE)
        shutil.rmtree(SOCKET)


def journal() -> str:
    return ran("journalctl", "--unit=runner", "--no-pager", "--output=cat", "--lines=40")


def follows(person: str, job: str, words: str) -> str:
    """Return the output of a job, once it has these words."""
    out = ""

    def look() -> bool:
        nonlocal out
        with suppress(AssertionError):
            out = ran(RUNNER, "logs", job, user=person)
        return words in out

    until(
        look,
        f"{job} prints {words}",
        more=lambda: f"{out}\n{ran(RUNNER, 'why', job, user=person)}",
    )
    return out


def own(path: Path, person: str) -> None:
    ran("chown", "-R", f"{person}:", str(path))
