"""Packages that are known by name: a resolver and a builder without an index."""

import tarfile
from pathlib import Path
from threading import Event
from typing import BinaryIO

from runner.base.errors import Unavailable
from runner.core.ports.images import Accelerator, BuildFailed
from runner.core.ports.packages import DockerfileRequest, PackageRequest, Unresolvable
from runner.core.ports.users import User


def lock_text(*names: str, version: str = "1.0") -> str:
    """Return a lock with packages of one version."""
    wheels = f'wheels = [{{ hashes = {{ sha256 = "{"0" * 64}" }} }}]'
    packages = (f'[[packages]]\nname = "{name}"\nversion = "{version}"\n{wheels}\n' for name in names)
    return 'lock-version = "1.0"\n' + "".join(packages) + '[tool.runner]\npython = "3.11"\n'


class FakePackages:
    """Satisfies ``runner.core.ports.packages.Packages``; a lock has what the requirements name."""

    def __init__(self) -> None:
        self.asked: list[tuple[PackageRequest, str]] = []
        self.built: list[tuple[str, str]] = []
        self.contexts: list[tuple[DockerfileRequest, tuple[str, ...]]] = []
        self.left: list[str] = []
        self.needed: list[frozenset[str]] = []
        self.missing: dict[str, str] = {}  # reasons by requirement
        self.broken: str | None = None  # why there is no image
        self.version = "1.0"  # of all packages of the index
        self.gate = Event()
        self.gate.set()

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        self.asked.append((request, who.name))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("looking\ndownloading tqdm\n")
        if not self.gate.wait(10) or job_id in self.left:
            raise Unavailable("nobody waits")
        if self.broken is not None:
            raise BuildFailed(self.broken)
        missing = [line for line in request.lines if line in self.missing]
        if missing:
            raise Unresolvable(self.missing[missing[0]], f"details of {missing[0]}")
        return lock_text(*request.lines, version=self.version)

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:
        del accelerator, log, job_id
        self.built.append((lock, image))
        return f"{image}-with-packages"

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:
        del log, job_id
        context.seek(0)
        with tarfile.open(fileobj=context) as tar:
            self.contexts.append((request, tuple(tar.getnames())))
        return f"{request.image}-from-dockerfile"

    def environment(self, lock: str) -> Path | None:
        del lock
        return None

    def evict(self, needed: frozenset[str]) -> None:
        self.needed.append(needed)

    def leave(self, job_id: str) -> None:
        self.left.append(job_id)
        self.gate.set()

    def close(self) -> None:
        """Nothing goes on."""
