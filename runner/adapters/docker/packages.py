"""Packages of jobs as layers on images: the package store as a port of the daemon.

Jobs with the same lock share one image; a lock on the file system lets one of them build it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from images.cancellation import CancellationToken
from images.errors import BuildCancelled, EngineUnavailable
from images.errors import BuildFailed as ImageBuildFailed
from images.log import BuildLog
from images.packages.family import own_family
from images.packages.resolve import IndexUnavailable
from images.packages.resolve import Unresolvable as ImageUnresolvable
from images.packages.store import PackageStore
from images.packages.values import Account, Requirements
from runner.base.errors import Unavailable
from runner.core.ports.images import Accelerator, BuildFailed, Images
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User


class DockerPackages:
    """Satisfies ``runner.core.ports.packages.Packages``."""

    def __init__(self, store: PackageStore, images: Images, run_as: Account | None) -> None:
        self._store = store
        self._run_as = run_as
        self._images = images
        self._tokens: dict[str, CancellationToken] = {}
        self._lock = Lock()

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        with self._token(job_id) as token, _translated():
            facts = self._store.facts(self._below(request, log, job_id))
            own = own_family(request.lines, facts)
            wanted = Requirements(request.lines, request.constraints, own, request.accelerator)
            return self._store.resolve(wanted, facts, self._account(who), token).text

    def _account(self, who: User) -> Account | None:
        """Return whose rights a resolution has; ``None``: those of this process, which are the user's."""
        if self._run_as is None:
            return None
        return Account(who.uid, who.gid) if who.uid else self._run_as

    def _below(self, request: PackageRequest, log: Path, job_id: str) -> str:
        """Return the id of the image that gets the packages."""
        if request.base is not None:
            return self._images.resolve(request.base)
        return self._images.ensure(request.accelerator, log, job_id)

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:
        with self._token(job_id) as token, _translated(), BuildLog(log, None, token) as lines:
            try:
                return self._store.ensure(lock, image, accelerator, lines)
            except ImageBuildFailed as error:
                lines.lines(str(error).splitlines())
                raise

    def leave(self, job_id: str) -> None:
        with self._lock:
            token = self._tokens.get(job_id)
        if token is not None:
            token.cancel()

    def close(self) -> None:
        with self._lock:
            tokens = tuple(self._tokens.values())
        for token in tokens:
            token.cancel("the daemon stops, and the next one starts it again")

    @contextmanager
    def _token(self, job_id: str) -> Iterator[CancellationToken]:
        token = CancellationToken()
        with self._lock:
            self._tokens[job_id] = token
        try:
            yield token
        finally:
            with self._lock:
                del self._tokens[job_id]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ImageUnresolvable as error:
        raise Unresolvable(str(error), error.details) from error
    except IndexUnavailable as error:
        raise Unavailable(f"the index of packages does not answer: {error}") from error
    except ImageBuildFailed as error:
        raise BuildFailed(str(error)) from error
    except (EngineUnavailable, BuildCancelled) as error:
        raise Unavailable(f"{error}; it is tried again") from error
