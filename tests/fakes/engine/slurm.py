"""The small Slurm of ``scripts/slurm``, as tests use it: one that all share, or one of their own to break."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "slurm"
SHARED: Final = "node"
"""The name of the nodes of the cluster that all share, before their number."""


@dataclass(frozen=True)
class Cluster:
    """A cluster, by its configuration."""

    conf: Path
    node: str = SHARED  # before the number

    @property
    def environment(self) -> dict[str, str]:
        place = str(self.conf.parent)
        own = {"SLURM_CONF": str(self.conf), "RUNNER_SLURM_DIR": place, "RUNNER_SLURM_NODE": self.node}
        return {**os.environ, **own}

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
        state, kept, before = self.conf.parent / "state", self.conf.parent / "state.kept", self.keepers()
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
        until(lambda: self.keepers() <= before, "no node keeps a job whose number is given again")

    def mend(self) -> None:
        """Bring back whatever a test has broken.

        Of a cluster that others use nothing is broken. A node of it may be drained on purpose, and the script
        would resume it.
        """
        if self.node != SHARED:
            self.script("start")

    def keepers(self) -> set[int]:
        """Return the processes that keep jobs on nodes: all nodes are on this machine."""
        found, variable = set(), f"SLURM_CONF={self.conf}".encode()
        for place in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                keeps = (place / "cmdline").read_bytes().startswith(b"slurmstepd: [")
                if keeps and variable in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
        return found


def _copied(state: Path, to: Path) -> bool:
    """Copy what slurmctld has written down; return whether it replaced no file meanwhile."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        shutil.copytree(state, to, ignore=shutil.ignore_patterns("*.new"))
    except (shutil.Error, FileNotFoundError):
        return False
    return all((to / path.name.removesuffix(".old")).exists() for path in to.glob("*.old"))


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """Start a cluster that nobody else uses, so that it may be broken, and end it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    place.chmod(0o755)  # jobs of other users run below it
    cluster = Cluster(place / "slurm.conf", f"{place.name.lower().replace('_', '-')}-node")
    try:
        cluster.script("start")
        yield cluster
    finally:
        cluster.script("stop")
