"""The daemon of a demonstration: commands as a user types them, and waits for what its jobs come to."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.client.autostart import Endpoint
from runner.client.client import Client

ROOT: Final = Path(__file__).parent.parent
RUNNER: Final = str(Path(sys.executable).with_name("runner"))
ENDED: Final = frozenset({"finished", "held"})
Json = dict[str, Any]


def place(name: str) -> Path:
    """Return the directory of a demonstration's state."""
    return Path(os.environ.get("RUNNER_STATE_DIR") or ROOT / ".make" / name)


@dataclass(frozen=True)
class Daemon:
    """A daemon of its own, which the first command starts."""

    state: Path
    patience_s: float = 1200

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its commands; its settings are in its state directory, if it has any."""
        settings = self.state / "settings.yaml"
        own = {"RUNNER_SETTINGS": str(settings)} if settings.exists() else {}
        return {**os.environ, "RUNNER_STATE_DIR": str(self.state), **own}

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Write its settings."""
        self.write("settings.yaml", settings)

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a file of its own, and return where it is."""
        self.state.mkdir(parents=True, exist_ok=True)
        path = self.state / name
        path.write_text(json.dumps(content, indent=1))  # JSON is YAML
        return path

    def runner(self, *arguments: str, show: bool = True, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command as a user would, and return its output; other exit codes end the demonstration."""
        if show:
            print(f"$ runner {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [RUNNER, *arguments],
            check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment,
        )  # fmt: skip
        if show and done.stdout:
            print(done.stdout, end="", flush=True)
        if done.returncode not in codes:
            sys.exit(f"demo: runner {' '.join(arguments)} ended with exit code {done.returncode}")
        return done.stdout

    def json(self, *arguments: str) -> Json:
        """Return the answer of a command as JSON."""
        found: Json = json.loads(self.runner(*arguments, "--json", show=False))
        return found

    def about(self) -> Json:
        """Return what the running daemon says of itself."""
        found: Json = self.json("version")["daemon"]
        return found

    def job(self, name: str) -> Json:
        """Return the state of a job, through the API: a command for each look would slow the jobs down."""
        return dict(Client(Endpoint(str(self.state / "runner.sock"), None)).job(name))

    def weights(self, name: str) -> str:
        """Return the sha256 of the weights of a job that has succeeded."""
        found = self.job(name)
        if found["outcome"] != "succeeded":
            sys.exit(f"demo: job {name} ended as {found['state']}: {found['why']}")
        return str(found["result"]["weights_sha256"])

    def looks(self, name: str, *, tell: bool = False) -> Iterator[Json]:
        """Yield the state of a job again and again, and print how it goes if ``tell``.

        The demonstration ends if that takes too long.
        """
        deadline, told = time.monotonic() + self.patience_s, ""
        while time.monotonic() < deadline:
            found = self.job(name)
            if tell and (line := _line(found)) != told:
                print(f"  {line}", flush=True)
                told = line
            yield found
            time.sleep(0.1)
        sys.exit(f"demo: job {name} took longer than {self.patience_s} s; runner logs {name}")

    def until(self, name: str, true: Callable[[Json], bool], *, tell: bool = False) -> Json:
        """Return a job once a condition is true, which must be before it has ended."""
        for found in self.looks(name, tell=tell):
            if true(found):
                return found
            if found["state"] in ENDED:
                sys.exit(f"demo: job {name} ended too early: {found['why']}")
        raise AssertionError

    def at_step(self, name: str, step: float) -> Json:
        """Wait for a step of a job, and return its progress then."""
        found = self.until(name, lambda found: (found.get("progress") or {}).get("step", 0) >= step)
        return dict(found["progress"])

    def metrics(self, name: str) -> list[Json]:
        """Return the metrics that the last attempt of a job has reported."""
        found = self.job(name)
        path = Path(found["run_dir"]) / "attempts" / str(found["attempt"]) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def ended(self, name: str, *, tell: bool = False) -> Json:
        """Return a job once it has ended or is held."""
        return next(found for found in self.looks(name, tell=tell) if found["state"] in ENDED)

    def half_way(self, name: str) -> Json:
        """Return a job once it has a checkpoint and has done half of its steps, and print how it goes."""
        return self.until(name, _is_half_way, tell=True)


def _is_half_way(found: Json) -> bool:
    progress = found.get("progress") or {}
    return bool(progress.get("checkpoint_step")) and progress["step"] * 2 >= progress["total_steps"]


def _line(found: Json) -> str:
    progress = found.get("progress") or {}
    if not progress.get("total_steps"):
        return f"{found['state']}: {found['why'] or progress.get('phase', '')}"
    step = f"step {progress['step'] - progress['step'] % 50} of {progress['total_steps']}"
    return f"attempt {found['attempt']} on {found['host']}: {step}" if found.get("host") else step


def compare(hashes: Mapping[str, str]) -> bool:
    """Print the sha256 of the weights of jobs, and return whether they are equal."""
    for name, value in hashes.items():
        print(f"{name:>20}: {value}")
    same = len(set(hashes.values())) == 1
    print("equal, bit for bit" if same else "DIFFERENT: this is a bug, please report it", flush=True)
    return same
