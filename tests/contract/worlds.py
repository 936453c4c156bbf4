"""Three worlds in which the one suite of ``Executor`` is played: values, processes, containers.

A world outlives its executors, as the machine outlives the daemon, and cleans up after itself.
"""

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Final, TypeVar

from jobs.contract import RunPaths
from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings, write_hosts_file
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.host.clock import boot_id
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.containers import NodeContainers
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.images import UnpackedImages
from runner.adapters.slurm.oci import NodeSettings
from runner.core.ports.executor import (
    Alive,
    Executor,
    Gone,
    Key,
    LaunchRequest,
    LaunchResult,
    Limits,
    Observation,
    Waiting,
)
from runner.core.ports.users import Owner
from runner.files.settings.model import SHIPPED_SECCOMP
from tests.fakes.daemon.service import until
from tests.fakes.engine.executor import FakeExecutor, Program
from tests.fakes.engine.executor import World as FakeWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

HOSTILE: Final = 'it\'s a "run"; echo $(id) `id`\n\\ # dir, rw'
"""Part of every path: nothing may be spliced into a shell's or an engine's words."""

OWNER: Final = Owner(os.getuid() or 12345, os.getgid() or 12345, "ada")
NOBODY: Final = Owner(pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid, "ada")
LIMITS: Final = Limits(cpus=1.0, memory_bytes=256 * 1024**2, pids=64, tmp_bytes=16 * 1024**2)


def eventually(look: Callable[[], T | None]) -> T:
    """Return the first true answer, for things that happen soon but in another process."""
    return until(look, "it happens")


@dataclass
class Place:
    """One world: makes executors that look at it, and requests that fit it."""

    instance: str
    make: Callable[[str], Executor]
    root: Path
    image: str = ""
    job_dir: Path | None = None  # what a program sees of its run directory; None: the host's path
    fake: FakeWorld | None = None
    owner: Owner = field(default_factory=lambda: OWNER)
    _made: list[Key] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """Return True if programs really run here."""
        return self.fake is None

    def executor(self) -> Executor:
        """Return a new executor, as a new daemon would have one."""
        return self.make(self.instance)

    def request(
        self, *argv: str, job: str = "j1", attempt: int = 1, like: Program | None = None
    ) -> LaunchRequest:
        """Return a request whose directories exist; ``like`` tells the fake how to play it."""
        if self.fake is not None and like is not None:
            self.fake.programs[argv] = like
        paths = RunPaths(self.root / job, attempt, 1)
        for leaf in (paths.attempt_dir, paths.home):
            leaf.mkdir(parents=True, exist_ok=True, mode=0o755)
            if os.geteuid() == 0:
                os.chown(leaf, self.owner.uid, self.owner.gid)
        key = Key(self.instance, job, attempt)
        self._made.append(key)
        return LaunchRequest(key, "tiny", self.owner, self.image, argv, paths.root, paths.log, LIMITS)

    def elsewhere(self, request: LaunchRequest, instance: str) -> LaunchRequest:
        """Return the same request of another daemon's store."""
        key = replace(request.key, instance=instance)
        self._made.append(key)
        return replace(request, key=key)

    def clear(self) -> None:
        for key in self._made:
            executor = self.make(key.instance)
            executor.signal(key, SIGKILL)
            eventually(lambda key=key, executor=executor: not_alive(executor, key))  # type: ignore[misc]
            executor.remove(key)


def seen(executor: Executor, key: Key) -> Observation | None:
    """Return the executor's observation of one attempt."""
    return next((observation for observation in executor.observe() if observation.key == key), None)


def not_alive(executor: Executor, key: Key) -> bool:
    return not isinstance(seen(executor, key), Alive)


def end(executor: Executor, key: Key) -> Gone:
    """Return the end of an attempt, once it has ended."""

    def look() -> Gone | None:
        observation = seen(executor, key)
        return observation if isinstance(observation, Gone) else None

    return eventually(look)


def printed(request: LaunchRequest) -> str:
    """Return the output of the attempt so far."""
    try:
        return request.log.read_text()
    except FileNotFoundError:
        return ""


def begun(request: LaunchRequest, word: str = "ready\n") -> None:
    """Wait until a real program has printed ``word``."""
    eventually(lambda: word in printed(request))


@contextmanager
def fake_place() -> "Iterator[Place]":
    world = FakeWorld()
    with _root() as root:
        yield Place("contract", lambda instance: FakeExecutor(instance, world), root, fake=world)


@contextmanager
def process_place() -> "Iterator[Place]":
    with _root() as root:
        books = root / "books"
        place = Place("contract", lambda name: ProcessExecutor(ProcessSettings(name, books)), root)
        yield place
        place.clear()


@contextmanager
def docker_place(url: str, image: str) -> "Iterator[Place]":
    def make(instance: str) -> DockerExecutor:
        hardened = HardeningSettings(
            instance, hosts_file=write_hosts_file(root), accounts=root / "accounts", boot_id=boot_id()
        )
        return DockerExecutor(DockerExecutorSettings(hardened, url))

    with _root() as root:
        place = Place(f"contract{os.getpid()}", make, root, image, Path("/job"))
        yield place
        place.clear()


@contextmanager
def slurm_place(conf: str, engine: str | None = None, image: str = "") -> "Iterator[Place]":
    """Attempts are jobs of a real Slurm, in containers if there is an image.

    Nodes look up the owner, who therefore is somebody.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    class Begun(SlurmExecutor):
        """Its launch returns when the attempt has begun: the suite takes a launch for a start."""

        def launch(self, request: LaunchRequest) -> LaunchResult:
            result = super().launch(request)
            eventually(lambda: not isinstance(seen(self, request.key), Waiting | None))
            return result

    def make(name: str) -> SlurmExecutor:
        commands = SlurmCommands(Path(conf))
        node = NodeSettings(seccomp=SHIPPED_SECCOMP["runner"].read_text(), machine=os.uname().machine)
        images, cdi = UnpackedImages(root / "images", engine), (str(root / "cdi"),)
        containers = NodeContainers(name, images, node, cdi_directories=cdi) if image else None
        books = root / "books"
        return Begun(
            SlurmExecutorSettings(name, books, commands, poll_s=0.2, path=path, containers=containers)
        )

    with _root() as root:
        inside = Path("/job") if image else None
        place = Place(f"contract{os.getpid()}", make, root, image, inside, owner=NOBODY)
        yield place
        place.clear()


@contextmanager
def _root() -> "Iterator[Path]":
    """Make a directory that other users may pass, unlike pytest's own."""
    outer = Path(tempfile.mkdtemp(prefix="runner-"))
    try:
        outer.chmod(0o755)
        root = outer / HOSTILE
        root.mkdir()
        yield root
    finally:
        shutil.rmtree(outer)
