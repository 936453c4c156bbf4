"""Parts shared by both kinds of packages: cancellation by job, and errors of ``images`` as the port's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from images.cancellation import CancellationToken
from images.errors import BuildCancelled, EngineUnavailable, HostFault
from images.errors import BuildFailed as ImageBuildFailed
from images.errors import ImageRefused as RefusedByStore
from images.log import BuildLog
from images.packages.family import own_family
from images.packages.resolve import IndexUnavailable
from images.packages.resolve import Unresolvable as ImageUnresolvable
from images.packages.values import Account, PythonFacts, Requirements
from runner.base.errors import Unavailable
from runner.core.ports.images import BuildFailed, ImageRefused
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User


class PackageTokens:
    """The cancellation of what is done for jobs now."""

    def __init__(self) -> None:
        self._tokens: dict[str, CancellationToken] = {}
        self._lock = Lock()

    @contextmanager
    def token(self, job_id: str) -> Iterator[CancellationToken]:
        """Yield a token that ``cancel`` with the same id cancels."""
        token = CancellationToken()
        with self._lock:
            self._tokens[job_id] = token
        try:
            yield token
        finally:
            with self._lock:
                self._tokens.pop(job_id, None)

    def cancel(self, job_id: str) -> None:
        """Cancel what is done for a job; does not block."""
        with self._lock:
            token = self._tokens.get(job_id)
        if token is not None:
            token.cancel()

    def close(self) -> None:
        """Cancel everything."""
        with self._lock:
            tokens = tuple(self._tokens.values())
        for token in tokens:
            token.cancel("the daemon stops, and the next one starts it again")

    @staticmethod
    def account(who: User, run_as: Account | None) -> Account | None:
        """Return the account for work of a user; None: that of this process, which are the user's."""
        if run_as is None:
            return None
        return Account(who.uid, who.gid) if who.uid else run_as


def find_requirements(request: PackageRequest, facts: PythonFacts) -> Requirements:
    """Return the requirements of a request beside a Python."""
    own = own_family(request.lines, facts)
    return Requirements(request.lines, request.constraints, own, request.accelerator, request.system)


@contextmanager
def as_build_log(path: Path, token: CancellationToken) -> Iterator[BuildLog]:
    """Yield the log of a build; the reason of a failure is its last line."""
    with BuildLog(path, None, token) as log:
        try:
            yield log
        except ImageBuildFailed as error:
            log.lines(str(error).splitlines())
            raise


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of ``images`` as those of ``runner``."""
    try:
        yield
    except ImageUnresolvable as error:
        raise Unresolvable(str(error), error.details) from error
    except IndexUnavailable as error:
        raise Unavailable(f"the index of packages does not answer: {error}") from error
    except (EngineUnavailable, BuildCancelled, HostFault) as error:
        raise Unavailable(f"{error}; it is tried again") from error
    except RefusedByStore as error:
        raise ImageRefused(str(error)) from error
    except ImageBuildFailed as error:
        raise BuildFailed(str(error)) from error
