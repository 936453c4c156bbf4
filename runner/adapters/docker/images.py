"""The image store as a port of the daemon: translates its errors, and shares its builds between jobs.

All jobs of one accelerator use the same image.  One of them builds it while the others wait, and the build is
cancelled when the last of them has left.  An answer of the engine is cached for a moment, so that jobs that
are submitted together ask it once.  A job that asks again found the image gone, and the engine is asked anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

from images.cancellation import CancellationToken
from images.store import ImageStore
from runner.adapters.package_errors import translated
from runner.core.ports.images import Accelerator, PullPolicy

CACHE_S: Final = 5.0
"""Time for which an answer of the engine is used; a launch notices that the image was removed meanwhile."""


@dataclass(slots=True)
class PendingBuild:
    """A build, and the jobs that wait for it."""

    token: CancellationToken = field(default_factory=CancellationToken)
    job_ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class KnownImage:
    """An image that the engine had a moment ago, and the jobs that got it."""

    image: str
    checked_s: float
    job_ids: set[str]

    def is_fresh_for(self, job_id: str) -> bool:
        """Return True if a job may have the image unseen; one that asks again has found it gone."""
        fresh = monotonic() - self.checked_s <= CACHE_S and job_id not in self.job_ids
        self.job_ids.add(job_id)
        return fresh


class DockerImages:
    """Satisfies ``runner.core.ports.images.Images``."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._builds: dict[str, PendingBuild] = {}  # by the accelerator, or the reference that is pulled
        self._known: dict[Accelerator, KnownImage] = {}
        self._lock = Lock()

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        with self._lock:
            known = self._known.get(accelerator)
            if known is not None and known.is_fresh_for(job_id):
                return known.image
        image = self._make(accelerator, job_id, lambda token: self._store.ensure(accelerator, log, token))
        with self._lock:
            self._known[accelerator] = KnownImage(image, monotonic(), {job_id})
        return image

    def fetch(self, reference: str, log: Path, job_id: str) -> str:
        return self._make(reference, job_id, lambda token: self._store.fetch(reference, log, token))

    def _make(self, wanted: str, job_id: str, make: Callable[[CancellationToken], str]) -> str:
        token = self._join(wanted, job_id)
        try:
            with translated():
                return make(token)
        finally:
            self.leave(job_id)

    def _join(self, wanted: str, job_id: str) -> CancellationToken:
        """Add a job to those that wait for an image, and return the token of their build."""
        with self._lock:
            build = self._builds.setdefault(wanted, PendingBuild())
            build.job_ids.add(job_id)
            return build.token

    def leave(self, job_id: str) -> None:
        with self._lock:
            for wanted, build in list(self._builds.items()):
                build.job_ids.discard(job_id)
                if not build.job_ids:
                    del self._builds[wanted]  # the next job begins a new build
                    build.token.cancel()

    def close(self) -> None:
        with self._lock:
            for build in self._builds.values():
                build.token.cancel("the daemon stops, and the next one starts the build again")

    def resolve(self, reference: str) -> str:
        with translated():
            return self._store.resolve(reference)

    def pin(self, reference: str, pull: PullPolicy) -> str:
        with translated():
            return self._store.pin(reference, pull)

    def digest(self, accelerator: Accelerator) -> str:
        with translated():
            return self._store.digest(accelerator)
