"""The small Slurm of ``scripts/slurm``, as tests use it: together with others, or alone to break it."""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "slurm"
SPARE: Final = "node4"
"""The node that tests may break; it is the whole partition ``spare``."""

FORGOTTEN: Final = 30
"""More jobs than a test submits in the seconds in which slurmctld writes nothing down."""

SPENT: Final = ("--job-name=spent", "--hold", "--output=/dev/null")
"""Options of a job that only takes a number."""


@dataclass(frozen=True)
class Cluster:
    """A cluster, by its configuration."""

    conf: Path
    alone: bool = False  # nobody else uses it, so that it may be broken

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "RUNNER_SLURM_DIR": str(self.conf.parent)}

    def ask(self, *command: str, given: str | None = None) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(
            command,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(),
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def script(self, *words: str) -> None:
        """Have ``scripts/slurm`` start or kill a part of the cluster."""
        subprocess.run([SCRIPT, *words], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def pid(self, name: str) -> int:
        return int((self.conf.parent / f"{name}.pid").read_text())

    def numbers(self, name: str) -> list[str]:
        """Return the numbers of all jobs with a name, whatever has become of them."""
        return self.ask("squeue", "--noheader", "--states=all", "--format=%i", f"--name={name}").split()

    def write_down(self, number: str) -> Callable[[], bool]:
        """Change a job, so that slurmctld writes down its jobs soon, and return whether it has.

        It does so within seconds of a change and at no other time. Killed before, it forgets what has
        happened, and ends the job when it comes back.
        """
        saved = self.conf.parent / "state" / "job_state"
        before_ns = time.time_ns()
        self.ask("scontrol", "update", f"JobId={number}", "Comment=to-be-written-down")
        return lambda: saved.exists() and saved.stat().st_mtime_ns > before_ns

    @contextmanager
    def amnesia(self) -> Iterator[Callable[[], None]]:
        """Keep what slurmctld has written down, and yield what kills it and brings it back with only that."""
        state, kept, before = self.conf.parent / "state", self.conf.parent / "state.kept", keepers()
        until(lambda: _copied(state, kept), "a copy of slurmctld's state, while it writes nothing")

        def forget() -> None:
            self.script("kill", "slurmctld")
            shutil.rmtree(state)
            shutil.copytree(kept, state)
            self.mend()

        try:
            yield forget
        finally:
            shutil.rmtree(kept)
        until(lambda: keepers() <= before, "no node keeps a job whose number is given again")

    def mend(self) -> None:
        """Bring back whatever a test has broken that had the cluster alone.

        Of one that others use nothing is broken, and a node may be drained on purpose: the script resumes it.
        """
        if self.alone:
            self.script("start")

    def spend_numbers(self) -> None:
        """Have slurmctld give away, and write down, numbers that it may have forgotten when it was killed.

        A node refuses a job whose number it has seen already.
        """
        numbers = [self.ask("sbatch", "--parsable", *SPENT, "--wrap=true") for _ in range(FORGOTTEN)]
        until(self.write_down(numbers[-1]), "slurmctld has written down its jobs")
        self.ask("scancel", "--name=spent")


def _copied(state: Path, to: Path) -> bool:
    """Copy what slurmctld has written down; return whether it replaced no file meanwhile."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        shutil.copytree(state, to, ignore=shutil.ignore_patterns("*.new"))
    except (shutil.Error, FileNotFoundError):
        return False
    return all((to / path.name.removesuffix(".old")).exists() for path in to.glob("*.old"))


def keepers() -> set[int]:
    """Return the processes that keep jobs on nodes: all nodes are on this machine."""
    found = set()
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (place / "cmdline").read_bytes().startswith(b"slurmstepd: ["):
                found.add(int(place.name))
    return found


@contextmanager
def used(conf: str, *, alone: bool = False) -> Iterator[Cluster]:
    """Use the cluster beside other tests, or alone."""
    cluster = Cluster(Path(conf), alone)
    with (cluster.conf.parent / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield cluster
        if alone:
            cluster.mend()
            cluster.spend_numbers()
