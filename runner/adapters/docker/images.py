"""``images`` as a port of the daemon: its errors become ours at this seam.

Also who waits for which image: all jobs of one accelerator wait for the same, one of them builds
it, and the build is broken off only when the last of them has left.  An answer of the engine is
good for a moment, so that jobs that come together ask once; a job that asks again found it gone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

from images.cancellation import CancellationToken
from images.errors import BuildAbandoned, EngineUnavailable
from images.errors import BuildFailed as ImageBuildFailed
from images.store import ImageStore
from runner.base.errors import Unavailable
from runner.core.ports.images import Accelerator, BuildFailed

CACHE_S: Final = 5.0
"""How long the engine is not asked again whether an image is there; that it is not, a launch finds out."""


@dataclass(slots=True)
class PendingBuild:
    """Those who wait for one image."""

    interest: CancellationToken = field(default_factory=CancellationToken)
    job_ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class CachedImage:
    """An image that was there a moment ago, and who was told so."""

    image: str
    asked_s: float
    job_ids: set[str] = field(default_factory=set)


class DockerImages:
    """Satisfies ``runner.core.ports.images.Images``."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._waits: dict[Accelerator, PendingBuild] = {}
        self._answers: dict[Accelerator, CachedImage] = {}
        self._lock = Lock()

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        answer = self._answered(accelerator, job_id)
        if answer is None:
            answer = CachedImage(self._ensured(accelerator, log, job_id), monotonic())
        with self._lock:
            self._answers[accelerator] = answer
            answer.job_ids.add(job_id)
        return answer.image

    def _answered(self, accelerator: Accelerator, job_id: str) -> CachedImage | None:
        with self._lock:
            answer = self._answers.get(accelerator)
            if answer is None or monotonic() - answer.asked_s > CACHE_S or job_id in answer.job_ids:
                return None
            return answer

    def _ensured(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        interest = self._join(accelerator, job_id)
        try:
            with _translated():
                return self._store.ensure(accelerator, log, interest)
        finally:
            self.leave(job_id)

    def _join(self, accelerator: Accelerator, job_id: str) -> CancellationToken:
        with self._lock:
            wait = self._waits.setdefault(accelerator, PendingBuild())
            wait.job_ids.add(job_id)
            return wait.interest

    def leave(self, job_id: str) -> None:
        with self._lock:
            for accelerator, wait in list(self._waits.items()):
                wait.job_ids.discard(job_id)
                if not wait.job_ids:
                    del self._waits[accelerator]  # whoever comes now begins anew
                    wait.interest.abandon()

    def close(self) -> None:
        with self._lock:
            for wait in self._waits.values():
                wait.interest.abandon("the daemon leaves, and the next one begins it again")

    def resolve(self, reference: str) -> str:
        with _translated():
            return self._store.resolve(reference)

    def digest(self, accelerator: Accelerator) -> str:
        with _translated():
            return self._store.digest(accelerator)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ImageBuildFailed as error:
        raise BuildFailed(str(error)) from error
    except (EngineUnavailable, BuildAbandoned) as error:
        raise Unavailable(f"{error}; it is tried again") from error
