"""The packages of jobs, made from the settings of the operator."""

import os
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from images.errors import BuildFailed
from images.own import DockerfileImages, DockerfileRules
from images.packages.answer import FoundPackage, read_answer
from images.packages.environment import EnvironmentStore, host_facts
from images.packages.resolve import Resolver
from images.packages.store import PackageSettings, PackageStore
from images.packages.values import Account, Indexes, Limits
from runner.adapters.docker.packages import DockerPackages
from runner.adapters.host.users import HostUsers
from runner.adapters.process.packages import HostPackages
from runner.base.errors import RunnerError
from runner.core.ports.images import Images
from runner.core.ports.packages import Packages
from runner.core.ports.store import JobRow, JobStore
from runner.core.ports.users import User
from runner.files.settings.model import Settings

if TYPE_CHECKING:
    from images.ports import Engine


UNPACKS: Final = 65531
"""The uid and gid that unpack wheels for a daemon of root.

No account and no job has them: jobs of root, which run as 65532, must not reach the wheels of others."""


def make_packages(
    directory: Path, settings: Settings, images: Images, users: HostUsers, *, in_container: bool
) -> Packages:
    """Return the packages of jobs, as layers of images or as environments of this host."""
    run_as = settings.root_jobs_run_as
    account = Account(run_as.uid, run_as.gid) if os.geteuid() == 0 else None
    known = replace(package_settings(directory, settings), read_answer=partial(_read_answer, users))
    if in_container:
        engine = partial(image_engine, settings.engine, settings.registry_login)
        return DockerPackages(
            PackageStore(known, engine),
            DockerfileImages(known.cache_dir, engine, dockerfile_rules(settings), known.limits),
            images,
            account,
            settings.packages.keep_bytes,
        )
    resolver = Resolver(
        known.cache_dir / "packages", known.indexes, known.limits, known.account, known.read_answer
    )
    return HostPackages(EnvironmentStore(known, cache(host_facts)), resolver, account)


def _read_answer(users: HostUsers, account: Account | None, directory: int) -> tuple[FoundPackage, ...]:
    """Read the answer of a resolver; that of an account is read by a worker of this user."""
    if account is None:
        return read_answer(directory)
    who = User(account.uid, account.gid, account.groups, str(account.uid))
    try:
        return users.work(who).read_answer(directory)
    except (RunnerError, ValueError) as error:
        raise BuildFailed(f"the answer of the resolver cannot be read: {error}") from error


def dockerfile_rules(settings: Settings) -> DockerfileRules:
    """Return the rules for the Dockerfiles of users."""
    shared = settings.serves_all_users
    offered = frozenset(settings.allowed_images.values()) if shared else None
    return DockerfileRules(offered, settings.dockerfile_network, cache=not shared, builder=settings.builder)


def needed_images(store: JobStore) -> frozenset[str]:
    """Return the images of jobs that have not ended: present ones, else those of their newest attempts."""

    def image_of(row: JobRow) -> str | None:
        present: str | None = getattr(row.job.state, "image", None)
        if present is not None or not row.job.attempts:
            return present
        return store.attempts(row.job.id)[-1].image

    return frozenset(filter(None, map(image_of, store.unfinished())))


def package_settings(directory: Path, settings: Settings) -> PackageSettings:
    """Return the settings for packages below a state directory."""
    asked = settings.packages
    return PackageSettings(
        cache_dir=directory / "images",
        indexes=Indexes(
            index_url=asked.index_url,
            extra_index_urls=asked.extra_index_urls,
            find_links=asked.find_links,
            offline=asked.no_index,
            torch=dict(settings.torch_indexes),
            netrc=None if asked.credentials is None else Path(asked.credentials),
            ca_file=settings.ca_file,
        ),
        account=Account(UNPACKS, UNPACKS) if os.geteuid() == 0 else None,
        limits=Limits(asked.time_limit_s, asked.memory_bytes),
    )


@cache
def image_engine(url: str | None, login: Path | None) -> "Engine":
    """Return the container engine, as builds know it."""
    from images.docker_engine import DockerEngine  # noqa: PLC0415  loads the SDK

    return DockerEngine(url, login)
