"""An executor on the small Slurm of ``scripts/slurm``, and the requests of a test."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from jobs.contract import RunPaths
from runner.adapters.launch import attempt_name
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.base.errors import Unavailable
from runner.core.ports.executor import (
    Alive,
    BatchOptions,
    BatchRequest,
    Gone,
    GpuRequest,
    Key,
    LaunchRequest,
    Limits,
    Observation,
)
from runner.core.ports.users import Owner
from tests.contract.worlds import eventually
from tests.fakes.engine.slurm import Cluster

NOBODY = Owner(pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid, "nobody")
LIMITS = Limits(cpus=1.0, memory_bytes=128 * 2**20)
SLEEP = ("/bin/sh", "-c", "echo ready; exec sleep 1000")
SAVES = (
    "/bin/sh",
    "-c",
    "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.1 & wait $!; done",
)
PYTHON = "/usr/bin/python3"  # that of a test may be where other users do not get
LAUNCHER = Path(__file__).parents[3] / "jobs" / "inside" / "gang.py"
LATER = BatchOptions(extra=("--begin=now+1hour",))


@dataclass
class Site:
    """An executor on the cluster, and the requests of one test."""

    cluster: Cluster
    root: Path
    path: str = os.environ["PATH"]
    patience_s: float = 60.0
    _made: list[Key] = field(default_factory=list)

    def executor(self) -> SlurmExecutor:
        """Return a new executor, as a new daemon would have one."""
        commands = SlurmCommands(self.cluster.conf, timeout_s=20, path=self.path)
        settings = SlurmExecutorSettings(
            f"slurm{os.getpid()}", self.root / "books", commands, poll_s=0.2, patience_s=self.patience_s
        )
        return SlurmExecutor(settings)

    def request(
        self,
        *argv: str,
        job: str,
        options: BatchOptions | None = None,
        gpus: int = 0,
        nodes: int = 1,
        attempt: int = 1,
    ) -> LaunchRequest:
        paths = RunPaths(self.root / job, attempt, 1)
        for leaf in (paths.attempt_dir, paths.home):
            leaf.mkdir(parents=True, exist_ok=True)
            os.chown(leaf, NOBODY.uid, NOBODY.gid)
        key = Key(f"slurm{os.getpid()}", job, attempt)
        self._made.append(key)
        asked = options or BatchOptions()
        batch = BatchRequest(LIMITS, GpuRequest(gpus), asked, grace=timedelta(seconds=5), nodes=nodes)
        return LaunchRequest(key, "tiny", NOBODY, "", argv, paths.root, paths.log, LIMITS, batch=batch)

    def clear(self) -> None:
        """End whatever still runs; the cluster must answer."""
        executor = self.executor()
        for key in self._made:
            for number in self.cluster.numbers(attempt_name(key)):
                with suppress(AssertionError):
                    self.cluster.ask("scancel", number)
            with suppress(Unavailable):
                executor.remove(key)

    def gang(
        self, script: str, *, job: str, nodes: int = 2, of_node: int = 2, options: BatchOptions | None = None
    ) -> LaunchRequest:
        """Return a request whose launchers start a shell script several times on each of some nodes."""
        directory = str(RunPaths(self.root / job, 1, 1).attempt_dir)
        command = (PYTHON, "-I", "-S", str(LAUNCHER), directory, str(of_node), "--")
        return self.request(*command, "/bin/sh", "-c", script, job=job, nodes=nodes, options=options)


@contextmanager
def site_on(cluster: Cluster) -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="runner-"))
    root.chmod(0o755)
    site = Site(cluster, root)
    try:
        yield site
    finally:
        cluster.mend()
        site.clear()
        shutil.rmtree(root)


def seen(executor: SlurmExecutor, key: Key) -> Observation | None:
    return next((each for each in executor.observe() if each.key == key), None)


def when(executor: SlurmExecutor, key: Key, fits: Callable[[Observation], bool]) -> Observation:
    """Wait until an attempt is observed as somebody expects it."""
    found: list[Observation] = []

    def look() -> bool:
        found[:] = [each for each in executor.observe() if each.key == key and fits(each)]
        return bool(found)

    eventually(look)
    return found[0]


def begun(executor: SlurmExecutor, request: LaunchRequest) -> Alive:
    found = when(executor, request.key, lambda each: isinstance(each, Alive))
    assert isinstance(found, Alive)
    eventually(lambda: request.log.exists() and "ready" in request.log.read_text())
    return found


def end(executor: SlurmExecutor, key: Key) -> Gone:
    found = when(executor, key, lambda each: isinstance(each, Gone))
    assert isinstance(found, Gone)
    return found
