"""Returns the image of an accelerator's jobs, and builds it if the engine has none with its digest.

The engine is the store: an image with the digest in its tag and its label is the right one, whoever has built
it.  A file lock per digest prevents two builds of the same image, also by different processes.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from images import bases, wheels
from images.addressed import AddressedImage
from images.bootstrap import Bootstrap, bootstrap
from images.cancellation import CancellationToken
from images.context import entries_below, plugin_entries, text_entry, write_tar
from images.digest import digest, repository
from images.errors import (
    BuildCancelled,
    BuildFailed,
    EngineUnavailable,
    HostFault,
    ImageRefused,
    failure,
    find_full_disk,
)
from images.file_lock import locked
from images.lock_files import LockFile, available, named
from images.log import BuildLog
from images.ports import BuildRequest, Engine, Image
from images.recipe import Base, Entry, Recipe, last_stage, without_last_stage
from images.records import record
from images.settings import ACCELERATORS, Accelerator, BuilderKind, ImageSettings, PullPolicy

_HERE: Final = Path(__file__).parent

COPY_PLUGINS: Final = "COPY plugins /opt/runner/\n"
"""The last step of an image with workloads of other distributions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The recipes of the two images of an accelerator, and their base."""

    base: Base
    environment: Recipe
    job: Recipe
    lock: LockFile

    @property
    def address(self) -> str:
        """Return the digest of the job image; it covers those of the environment and the base."""
        return digest(self.job)


class ImageStore:
    """Finds and builds images; ``runner.adapters.docker.images`` makes it a port of the daemon."""

    def __init__(
        self,
        settings: ImageSettings | None = None,
        engine: Engine | None = None,
        echo: Callable[[str], None] | None = None,
        choose: Callable[[tuple[LockFile, ...]], LockFile] = itemgetter(0),
    ) -> None:
        """``choose`` is asked where there are several locks and the settings name none, the newest first."""
        self._settings = settings or ImageSettings()
        self._given_engine = engine
        self._echo = echo
        self._choose = choose

    @cached_property
    def _engine(self) -> Engine:
        if self._given_engine is not None:
            return self._given_engine
        from images.docker_engine import DockerEngine  # noqa: PLC0415  loads the SDK, which only builds need

        return DockerEngine(self._settings.engine_url, self._settings.registry_login)

    def ensure(self, accelerator: str, log: Path, token: CancellationToken | None = None) -> str:
        """Return the id of an accelerator's image, and build what is missing.

        Raises:
            BuildFailed: the message is the last lines of the log.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: ``token`` was cancelled; complete wheels and layers are kept.
        """
        with _translate_disk_errors(), BuildLog(log, self._echo, token) as lines, _log_failure(lines):
            return self._ensure(self._plan(_check_accelerator(accelerator), lines), lines)

    def digest(self, accelerator: str) -> str:
        """Return the digest of the image that ``ensure`` would return.

        Raises:
            BuildFailed: no base image is available.
            EngineUnavailable: the engine does not answer.
        """
        with BuildLog(self._settings.cache_dir / "base.log") as lines:
            return self._plan(_check_accelerator(accelerator), lines).address

    def lock(self, accelerator: str) -> LockFile:
        """Return the lock of the image that ``ensure`` would return.

        Raises:
            BuildFailed: the settings name one that does not exist.
        """
        known = _check_accelerator(accelerator)
        return named(known, self._settings) or self._choose(available(known, self._settings))

    def resolve(self, reference: str) -> str:
        """Return the id of an image by its tag or id; never pull it.

        Raises:
            BuildFailed: the engine has none.
            ImageRefused: no container may be made of it.
            EngineUnavailable: the engine does not answer.
        """
        return str(self._usable(reference)["Id"])

    def _usable(self, reference: str) -> Mapping[str, Any]:
        """Return the description of an image of which containers may be made."""
        found = self._engine.inspect(reference)
        if volumes := ", ".join(sorted((found.get("Config") or {}).get("Volumes") or ())):
            raise ImageRefused(f"image {reference}: declares the volume {volumes}; build it without")
        return found

    def pin(self, reference: str, pull: PullPolicy) -> str:
        """Return the pinned name of the image of a reference: by its digest, or by its id.

        Args:
            reference: Its tag, digest or id.
            pull: Whether its registry is asked which image that is, if the engine has one, if not, or never.

        Raises:
            BuildFailed: neither the engine nor the registry has one.
            HostFault: the registry does not answer now.
            ImageRefused: no container may be made of it.
            EngineUnavailable: the engine does not answer.
        """
        if pull == "never":
            return self.resolve(reference)
        repository = _repository(reference)
        if pull == "missing" or "@" in reference or repository is None:
            try:
                found = self._usable(reference)
            except ImageRefused:
                raise
            except BuildFailed:
                if repository is None:
                    raise
            else:
                digests = found.get("RepoDigests") or ()
                known = (each for each in digests if repository == _repository(each))
                return str(next(known, found["Id"]))
        return f"{repository}@{self._engine.look_up(reference)}"

    def fetch(self, reference: str, log: Path, token: CancellationToken | None = None) -> str:
        """Return the id of an image by its tag, digest or id, and pull it if the engine has none.

        Raises:
            BuildFailed: the registry has none, or ``resolve`` refuses it.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: ``token`` was cancelled.
        """
        with _translate_disk_errors(), BuildLog(log, self._echo, token) as lines, _log_failure(lines):
            if _repository(reference) is not None and self._engine.image(reference) is None:
                lines.line(f"pull {reference}")
                self._engine.pull(reference, lines.line, lines.token)
            return self.resolve(reference)

    def bootstrap(self, base_tag: str) -> str:
        """Make a base image without a registry, and return its id.

        Raises:
            BuildFailed: no tool for it is installed, or the archive does not answer.
            EngineUnavailable: the engine does not answer.
        """
        with BuildLog(self._settings.cache_dir / "base.log", self._echo) as log, self._lock("base", log):
            return bootstrap(self._engine, Bootstrap(base_tag), log)

    @cached_property
    def _builder(self) -> BuilderKind:
        wanted = self._settings.builder
        return next(self._engine.builders()) if wanted == "auto" else wanted

    @cached_property
    def _platform(self) -> str:
        return self._engine.platform()

    def _plan(self, accelerator: Accelerator, log: BuildLog) -> Plan:
        chosen = self.lock(accelerator)
        with self._lock("base", log):
            base = bases.resolve(self._engine, self._settings, log)
        text = (self._settings.dockerfiles / f"Dockerfile.{accelerator}").read_text()
        lock = f"images/locks/{chosen.name}.txt"
        environment = Recipe(
            kind="environment",
            accelerator=accelerator,
            below=base.id,
            dockerfile=without_last_stage(text),
            arguments=(("LOCK", lock),),
            platform=self._platform,
            builder=self._builder,
            entries=(text_entry(lock, chosen.text),),
        )
        plugins = tuple(chain.from_iterable(map(plugin_entries, self._settings.plugins)))
        job = Recipe(
            kind="job",
            accelerator=accelerator,
            below=digest(environment),
            dockerfile=last_stage(text) + (COPY_PLUGINS if plugins else ""),
            arguments=(),
            platform=self._platform,
            builder=self._builder,
            entries=(*entries_below(_HERE.with_name("jobs"), "jobs"), *_for_programs(), *plugins),
        )
        return Plan(base, environment, job, chosen)

    def _ensure(self, plan: Plan, log: BuildLog) -> str:
        image = self._find(plan.job) or self._build_once(plan, log)
        self._record(plan, image)
        current = f"{repository('job', plan.job.accelerator)}:current"
        if current not in image.tags:
            self._engine.tag(image.id, current)
        return image.id

    def _record(self, plan: Plan, image: Image) -> None:
        """Record both images as ours, also if somebody else has built them from the same recipes."""
        if record(self._settings.cache_dir, image.id):
            environment = self._find(plan.environment)
            if environment is not None:
                record(self._settings.cache_dir, environment.id)

    def _find(self, recipe: Recipe) -> Image | None:
        """Return the image of a recipe, if any."""
        return _image_of(recipe).find(self._engine)

    def _build_once(self, plan: Plan, log: BuildLog) -> Image:
        with self._lock(plan.address, log):
            return self._find(plan.job) or self._build_job(plan, log)

    def _build_job(self, plan: Plan, log: BuildLog) -> Image:
        below = digest(plan.environment)
        with self._lock(below, log):  # held to the end, so that the environment is not pruned
            if self._find(plan.environment) is None:
                self._build_environment(plan, log)
            environment = {"ENVIRONMENT": _image_of(plan.environment).tag}
            return self._build(plan.job, plan.lock, environment, (), log)

    def _build_environment(self, plan: Plan, log: BuildLog) -> Image:
        directory = wheels.wheelhouse(plan.lock, plan.base, self._settings, log)
        below, found = {"BASE": plan.base.tag}, tuple(wheels.entries(directory))
        return self._build(plan.environment, plan.lock, below, found, log)

    def _build(
        self, recipe: Recipe, lock: LockFile, below: dict[str, str], more: tuple[Entry, ...], log: BuildLog
    ) -> Image:
        wanted = _image_of(recipe)
        log.token.check()
        log.line(f"{recipe.kind}: building {wanted.tag} with {recipe.builder}")
        labels = wanted.labels(next(iter(below.values()))) | _labels(lock)
        request = BuildRequest(wanted.tag, dict(recipe.arguments) | below, labels)
        with tempfile.TemporaryFile(dir=self._settings.cache_dir) as archive:
            write_tar((text_entry("Dockerfile", recipe.dockerfile), *recipe.entries, *more), archive)
            archive.seek(0)
            log.lines(self._engine.build(recipe.builder, request, archive, log.token))
        image = wanted.built(self._engine, log)
        if recipe.kind == "environment":  # the job image is recorded by whoever asked for it
            record(self._settings.cache_dir, image.id)
        return image

    def _lock(self, name: str, log: BuildLog) -> AbstractContextManager[None]:
        waiting = partial(log.line, "waiting for another build of the same image")
        return locked(self._settings.cache_dir, name, waiting, log.token)


def _repository(reference: str) -> str | None:
    """Return a reference without its tag and digest, as engines shorten it; None: it is an id."""
    if reference.startswith("sha256:"):
        return None
    above, slash, name = reference.partition("@")[0].rpartition("/")
    whole = above + slash + name.partition(":")[0]
    return whole.removeprefix("docker.io/").removeprefix("library/")


@contextmanager
def _log_failure(log: BuildLog) -> Iterator[None]:
    """Write the reason of a failure to the log; a cancelled build may fail with any error."""
    try:
        try:
            yield
        except (BuildFailed, EngineUnavailable):
            log.token.check()
            raise
    except BuildCancelled as error:
        log.line(str(error))
        raise
    except BuildFailed as error:
        log.lines(str(error).splitlines())
        full = find_full_disk(log.tail())
        if full is not None or isinstance(error, HostFault):
            raise HostFault(full or str(error)) from error
        raise BuildFailed(log.tail()) from error


def _for_programs() -> tuple[Entry, ...]:
    """Return the part of ``gpu_job_runner`` that programs in an image use; the rest needs a daemon."""
    package = "gpu_job_runner"
    entries = entries_below(_HERE.with_name(package), package)
    parts = tuple(
        f"{package}/{name}"
        for name in ("__init__.py", "attach.py", "profiled.py", "tracking.py", "integrations/")
    )
    return tuple(entry for entry in entries if entry.path.startswith(parts))


@contextmanager
def _translate_disk_errors() -> Iterator[None]:
    """Raise ``BuildFailed`` for a full disk or a missing permission."""
    try:
        yield
    except OSError as error:
        raise failure(f"{error.filename or 'build'}: {error.strerror or error}") from error


def _check_accelerator(accelerator: str) -> Accelerator:
    for known in ACCELERATORS:
        if accelerator == known:
            return known
    raise BuildFailed(f"accelerator {accelerator!r}: no image for it; take one of {', '.join(ACCELERATORS)}")


def _image_of(recipe: Recipe) -> AddressedImage:
    return AddressedImage(recipe.kind, recipe.accelerator, digest(recipe))


def _labels(lock: LockFile) -> dict[str, str]:
    dotted = ".".join(map(str, lock.version or ()))
    version = {} if lock.version is None else {f"runner.{lock.accelerator}": dotted}
    created = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    return {**version, "runner.created": created}
