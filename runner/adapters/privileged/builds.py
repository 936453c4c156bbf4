"""Images and packages of jobs, as root builds them for a daemon that it does not trust."""

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from images.records import record
from runner.adapters.privileged.site import PrivilegedSite
from runner.base.errors import Refused
from runner.core.ports.images import Accelerator, BuildFailed, PullPolicy
from runner.core.ports.packages import DockerfileRequest, PackageRequest, Packages
from runner.core.ports.users import User
from runner.files.job.image import is_offered


@dataclass(frozen=True, slots=True)
class RootImages:
    """Satisfies ``interface.PrivilegedImages``."""

    site: PrivilegedSite

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:  # noqa: ARG002  it is job_id's
        image = self.site.images.ensure(accelerator, _build_log(self.site, job_id), job_id)
        return _offered(self.site, image)

    def leave(self, job_id: str) -> None:
        self.site.images.leave(job_id)

    def close(self) -> None:
        self.site.images.close()

    def resolve(self, reference: str) -> str:
        _check_offered(self.site, reference)
        return _offered(self.site, self.site.images.resolve(reference))

    def pin(self, reference: str, pull: PullPolicy) -> str:
        pinned = self.site.images.pin(reference, _check_offered(self.site, reference, pull))
        return _offered(self.site, pinned) if pinned.startswith("sha256:") else pinned

    def fetch(self, reference: str, log: Path, job_id: str) -> str:  # noqa: ARG002  it is job_id's
        _check_pinned(self.site, reference)
        return _offered(self.site, self.site.images.fetch(reference, _build_log(self.site, job_id), job_id))

    def digest(self, accelerator: Accelerator) -> str:
        return self.site.images.digest(accelerator)


@dataclass(frozen=True, slots=True)
class RootPackages:
    """Satisfies ``interface.PrivilegedPackages``."""

    site: PrivilegedSite

    def resolve(self, request: PackageRequest, uid: int, gid: int, job_id: str) -> str:
        if uid:
            self.site.walls.owner(uid, gid)
        if request.base is not None:
            _check_pinned(self.site, request.base)
        for _, reference in request.offered:
            _check_offered(self.site, reference)
        for name in (each.partition("=")[0] for each in request.system):
            if not any(fnmatchcase(name, pattern) for pattern in self.site.allowed_system):
                raise Refused(f"{name[:100]}: is not on the list of the settings (packages.system)")
        log_file = self.site.image_records / "packages" / f"{job_id}.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.touch(mode=0o600)
        os.chown(log_file, self.site.walls.daemon_uid, -1, follow_symlinks=False)  # it reads it meanwhile
        try:
            return self._packages.resolve(request, User(uid, gid, (gid,), str(uid)), log_file, job_id)
        finally:
            log_file.unlink(missing_ok=True)

    def ensure(self, lock: str, image: str, accelerator: Accelerator, job_id: str) -> str:
        if self.site.chosen().kind == "docker":
            _check_known(self.site, image)
        if not self.site.allowed_system and "[[tool.runner.system]]" in lock:
            raise Refused("the settings allow no Debian packages (packages.system)")
        made = self._packages.ensure(lock, image, accelerator, _build_log(self.site, job_id), job_id)
        return _offered(self.site, made)

    def build(self, request: DockerfileRequest, context: int, job_id: str) -> str:
        if not self.site.allows_dockerfiles:
            raise Refused("Dockerfiles are not allowed by the settings (packages.dockerfiles)")
        _check_known(self.site, request.image)
        with open(context, "rb", closefd=False) as tar:
            made = self._packages.build(request, tar, _build_log(self.site, job_id), job_id)
        return _offered(self.site, made)

    def environment(self, lock: str) -> Path | None:
        return self._packages.environment(lock)

    def evict(self, needed: frozenset[str]) -> None:
        self._packages.evict(needed)

    def leave(self, job_id: str) -> None:
        self._packages.leave(job_id)

    def close(self) -> None:
        self._packages.close()

    @property
    def _packages(self) -> Packages:
        return self.site.chosen().packages


def _build_log(site: PrivilegedSite, job_id: str) -> Path:
    return site.jobs / job_id / "build.log"


def _offered(site: PrivilegedSite, image: str) -> str:
    """Note an image that attempts may be started with from now on, and return it."""
    record(site.image_records / "offered", image)
    return image


def _check_offered(site: PrivilegedSite, reference: str, pull: PullPolicy = "never") -> PullPolicy:
    """Return the policy by which an image may be pulled: one that the operator names himself never."""
    if reference in site.allowed_images.values():
        return "never"
    if not is_offered(reference, site.allowed_images.values()):
        raise BuildFailed(f"image {reference[:100]}: is not offered by the settings")
    return pull


def _check_pinned(site: PrivilegedSite, pinned: str) -> None:
    """Check an image that ``pin`` has returned: by its id, or by a digest in a repository of a pattern."""
    if not (is_offered(pinned, site.allowed_images.values()) and "@sha256:" in pinned):
        _check_known(site, pinned)


def _check_known(site: PrivilegedSite, image: str) -> None:
    if image not in site.known_images():
        raise BuildFailed(f"image {image[:100]}: is not offered by the settings")
