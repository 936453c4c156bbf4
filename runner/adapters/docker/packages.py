"""Packages of jobs as layers on images: the package store as a port of the daemon.

Jobs with the same lock share one image; a lock on the file system lets one of them build it.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from images.errors import BuildFailed as ImageBuildFailed
from images.own import DockerfileImages
from images.packages.store import PackageStore
from images.packages.values import Account
from runner.adapters.package_errors import PackageTokens, as_build_log, find_requirements, translated
from runner.core.ports.images import Accelerator, BuildFailed, Images
from runner.core.ports.packages import DockerfileRequest, PackageRequest, Unresolvable
from runner.core.ports.users import User


class DockerPackages:
    """Satisfies ``runner.core.ports.packages.Packages``."""

    def __init__(
        self,
        store: PackageStore,
        dockerfiles: DockerfileImages,
        images: Images,
        run_as: Account | None,
        keep_bytes: int | None = None,
    ) -> None:
        self._store = store
        self._dockerfiles = dockerfiles
        self._keep_bytes = keep_bytes
        self._images = images
        self._run_as = run_as
        self._tokens = PackageTokens()
        self.leave, self.close = self._tokens.cancel, self._tokens.close

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        with self._tokens.token(job_id) as token, translated(), as_build_log(log, token) as lines:
            below, name = self._below(request, log, job_id)
            wanted = find_requirements(request, self._store.facts(below))
            lock = self._store.resolve(wanted, below, self._tokens.account(who, self._run_as), lines)
            return replace(lock, below=name).text

    def _below(self, request: PackageRequest, log: Path, job_id: str) -> tuple[str, str | None]:
        """Return the id of the image that gets the packages, and its name if it was chosen by its Python."""
        if request.base is not None:
            below = self._images.fetch(request.base, log, job_id)
        else:
            below = self._images.ensure(request.accelerator, log, job_id)
        held = self._store.facts(below).python
        if request.python in {None, held}:
            return below, None
        there = {"its base" if request.base is not None else "auto": held}
        for name, reference in request.offered:
            with suppress(BuildFailed, ImageBuildFailed):  # one that is not there, or has no Python
                image = self._images.resolve(reference)
                there[name] = self._store.facts(image).python
                if request.base is None and there[name] == request.python and self._fits(image, request):
                    return image, name
        known = ", ".join(f"{name} has {python}" for name, python in there.items())
        fact = f"no image for it ({known}); take one of these, or ask the operator (allowed_images)"
        raise Unresolvable(f"image.python: {fact}", "")

    def _fits(self, image: str, request: PackageRequest) -> bool:
        """Return True if an image is not made for another accelerator."""
        made_for = self._store.labels(image).get("runner.accelerator", request.accelerator)
        return made_for == request.accelerator

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:
        with self._tokens.token(job_id) as token, translated(), as_build_log(log, token) as lines:
            return self._store.ensure(lock, image, accelerator, lines)

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:
        with self._tokens.token(job_id) as token, translated(), as_build_log(log, token) as lines:
            context.seek(0)
            return self._dockerfiles.ensure(
                context, request.path, request.image, request.accelerator, request.uid, lines
            )

    def evict(self, needed: frozenset[str]) -> None:
        if self._keep_bytes is not None:
            with translated():
                self._store.evict(self._keep_bytes, needed)

    def environment(self, lock: str) -> Path | None:
        del lock  # the packages are in the image
        return None
