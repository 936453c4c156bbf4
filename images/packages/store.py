"""Images with the packages of a lock: one layer on the image of an accelerator, or of the operator."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from images.addressed import AddressedImage
from images.digest import VERSION_LABELS, digest_of
from images.log import BuildLog
from images.packages.answer import ReadAnswer
from images.packages.layer import PackageLayer, variables
from images.packages.lock import Lock, parse_lock
from images.packages.probe import probe_image
from images.packages.resolve import Resolver, read_here
from images.packages.scratch import name_of
from images.packages.sdist import SourceBuilder
from images.packages.system import SystemStore
from images.packages.unpack import Unpacker
from images.packages.values import Account, Indexes, Limits, PythonFacts, Requirements
from images.ports import Addition, Engine
from images.prune import evict
from images.settings import Accelerator

SCHEMA: Final = 3
"""Increment it when the same lock gives a different layer."""


@dataclass(frozen=True, slots=True)
class PackageSettings:
    """Settings of resolving and unpacking packages on this machine."""

    cache_dir: Path
    indexes: Indexes = field(default_factory=Indexes)
    account: Account | None = None
    """User who unpacks wheels; ``None``: this process."""
    limits: Limits = field(default_factory=Limits)
    read_answer: ReadAnswer = read_here


@dataclass(frozen=True, slots=True)
class PackageStore:
    """Resolves locks, and finds and builds the images of them."""

    settings: PackageSettings
    engine: Callable[[], Engine]

    def facts(self, image: str) -> PythonFacts:
        """Return the Python and the packages of an image.

        Raises:
            BuildFailed: it has no Python.
            EngineUnavailable: the engine does not answer.
        """
        return probe_image(self.engine(), image, self.settings.cache_dir)

    def labels(self, image: str) -> Mapping[str, str]:
        """Return the labels of an image, none if the engine does not have it."""
        found = self.engine().image(image)
        return {} if found is None else found.labels

    def resolve(self, wanted: Requirements, below: str, account: Account | None, log: BuildLog) -> Lock:
        """Return the lock of requirements for an image; packages without a wheel are built.

        Raises:
            Unresolvable: the requirements have no solution, or a build failed.
            IndexUnavailable: the index does not answer.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        system = self._system.resolve(wanted.system, below, log) if wanted.system else ()
        below = self._system.ensure(system, below, wanted.accelerator, log)  # what is built may need them
        lock = self._resolve(replace(wanted, system=()), below, account, log)
        return replace(lock, system=system)

    def _resolve(self, wanted: Requirements, below: str, account: Account | None, log: BuildLog) -> Lock:
        if not wanted.lines:
            facts = self.facts(below)
            return Lock(facts.python, facts.machine, ())
        settings, place = self.settings, self.settings.cache_dir / "packages"
        builder = SourceBuilder(
            engine=self.engine,
            resolver=Resolver(
                place, settings.indexes, settings.limits, settings.account, settings.read_answer
            ),
            unpacker=self._unpacker(),
            image=below,
            facts=self.facts(below),
            account=account,
            directory=place / "built" / name_of(account),
            limits=settings.limits,
        )
        return builder.resolve(wanted, log)

    @property
    def _system(self) -> SystemStore:
        settings, certificates = self.settings, self.settings.indexes.ca_file
        return SystemStore(settings.cache_dir, self.engine, settings.limits, certificates)

    def _unpacker(self) -> Unpacker:
        settings = self.settings
        return Unpacker(settings.cache_dir / "packages", settings.indexes, settings.account, settings.limits)

    def ensure(self, text: str, below: str, accelerator: Accelerator, log: BuildLog) -> str:
        """Return the id of the image with the packages of a lock, on an image that is in the engine.

        If the image holds all of them already, it is the answer.

        Raises:
            BuildFailed: a wheel has vanished, or the image has other packages than the lock takes from it.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        lock = parse_lock(text)
        below = self._system.ensure(lock.system, below, accelerator, log)
        facts = self.facts(below)
        lock.check_base(facts.versions)
        if not lock.packages:
            log.line("packages: the image has all of them")
            return below
        image = AddressedImage("packages", accelerator, _address(lock, below))
        build = partial(self._build, image, lock, facts, below, log)
        return image.ensure(self.engine(), self.settings.cache_dir, log, build)

    def evict(self, keep_bytes: int, needed: Collection[str]) -> None:
        """Remove images that were not used for longest, until the others have at most so many bytes."""
        evict(self.engine(), self.settings.cache_dir, keep_bytes, needed)

    def _build(
        self, image: AddressedImage, lock: Lock, facts: PythonFacts, below: str, log: BuildLog
    ) -> None:
        log.line(f"packages: {len(lock.packages)} packages, {lock.size_bytes / 1024**2:.1f} MiB of wheels")
        owner = {} if lock.owner is None else {"runner.owner": str(lock.owner)}
        labels = image.labels(below) | owner
        if lock.isolated:  # a torch of its own, with another CUDA or none
            labels |= dict.fromkeys(VERSION_LABELS, "")
        inherited = self.engine().inspect(below)["Config"].get("Env") or ()
        with self._unpacker().unpacked(lock, facts, log) as root:
            layer = PackageLayer(root, facts, isolated=lock.isolated)
            addition = Addition(image.tag, below, labels, variables(facts, inherited))
            told = log.counted(layer.parts(), layer.size, "packages: layer")
            self.engine().add_layer(addition, told, log.token)


def _address(lock: Lock, below: str) -> str:
    """Return the digest of everything that determines an image with packages."""
    wheels = sorted((each.name, each.version, each.wheel.sha256) for each in lock.packages)
    return digest_of({"schema": SCHEMA, "below": below, "wheels": wheels, "isolated": lock.isolated})
