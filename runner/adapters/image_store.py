"""``images`` as a port of the daemon: its errors become ours at this seam.

Also who waits for which image: all jobs of one accelerator wait for the same, one of them builds
it, and the build is broken off only when the last of them has left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from images.errors import BuildAbandoned, EngineUnavailable
from images.errors import BuildFailed as ImageBuildFailed
from images.interest import Interest
from images.store import ImageStore
from runner.errors import Unavailable
from runner.ports import Accelerator, BuildFailed


@dataclass(slots=True)
class Wait:
    """Those who wait for one image."""

    interest: Interest = field(default_factory=Interest)
    job_ids: set[str] = field(default_factory=set)


class ImagesAdapter:
    """Satisfies ``runner.ports.Images``."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._waits: dict[Accelerator, Wait] = {}
        self._lock = Lock()

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        interest = self._join(accelerator, job_id)
        try:
            with _translated():
                return self._store.ensure(accelerator, log, interest)
        finally:
            self.leave(job_id)

    def _join(self, accelerator: Accelerator, job_id: str) -> Interest:
        with self._lock:
            wait = self._waits.setdefault(accelerator, Wait())
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
