"""Packages of jobs as virtual environments of this host: the environment store as a port of the daemon."""

from pathlib import Path
from typing import BinaryIO

from images.packages.environment import EnvironmentStore
from images.packages.resolve import Resolver
from images.packages.resolve import Unresolvable as ImageUnresolvable
from images.packages.values import Account
from runner.adapters.package_errors import PackageTokens, as_build_log, find_requirements, translated
from runner.core.ports.images import Accelerator, BuildFailed
from runner.core.ports.packages import DockerfileRequest, PackageRequest
from runner.core.ports.users import User


class HostPackages:
    """Satisfies ``runner.core.ports.packages.Packages``."""

    def __init__(self, store: EnvironmentStore, resolver: Resolver, run_as: Account | None) -> None:
        self._store = store
        self._resolver = resolver
        self._run_as = run_as
        self._tokens = PackageTokens()
        self.leave, self.close = self._tokens.cancel, self._tokens.close

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        del log
        with self._tokens.token(job_id) as token, translated():
            facts, account = self._store.facts(), self._tokens.account(who, self._run_as)
            try:
                wanted = find_requirements(request, facts)
                return self._resolver.resolve(wanted, facts, account, token).text
            except ImageUnresolvable as error:
                if error.unbuilt is None:
                    raise
                fact = f"{error}; building from source needs containers"
                raise ImageUnresolvable(fact, error.details) from error

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:
        del accelerator
        with self._tokens.token(job_id) as token, translated(), as_build_log(log, token) as lines:
            self._store.ensure(lock, lines)
            return image

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:
        del request, context, log, job_id
        raise BuildFailed("a Dockerfile needs a container engine, and jobs are plain processes here")

    def environment(self, lock: str) -> Path | None:
        return self._store.place(lock)

    def evict(self, needed: frozenset[str]) -> None:
        """Keep all environments: nothing tells which of them a process still uses."""
