"""Builds packages that have no wheel, from their source distributions, in containers.

The resolver finds the source distribution and the packages that its build needs, without executing anything.
The container executes the build as the submitter: without network, without capabilities, with nothing but the
sources and those packages.  The wheel that it makes is kept for this user alone.
"""

import hashlib
import json
import netrc
import os
import shutil
import ssl
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.lock import Lock
from images.packages.resolve import IndexUnavailable, Resolver, Unresolvable, hand_over, make_private
from images.packages.unpack import Unpacker
from images.packages.values import Account, Built, Limits, PythonFacts, Requirements, Source
from images.ports import Engine, Step

MOST: Final = 20
"""Packages of one job that may have to be built."""

MAX_SOURCE_BYTES: Final = 256 * 1024**2
MAX_WHEEL_BYTES: Final = 2 * 1024**3
DEFAULT_REQUIRES: Final = ("setuptools>=40.8", "wheel")
"""What a source distribution without ``pyproject.toml`` needs, as PEP 517 says."""

_BLOCK: Final = 1024**2

SCRIPT: Final = """
import importlib, json, os, sys, tarfile, tomllib, zipfile
mode, source, packages, out = sys.argv[1:]
sys.path.insert(0, packages)
os.environ["PYTHONPATH"] = packages
os.makedirs("/tmp/source")
if zipfile.is_zipfile(source):
    zipfile.ZipFile(source).extractall("/tmp/source")
else:
    with tarfile.open(source) as archive:
        archive.extractall("/tmp/source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
[top] = os.listdir("/tmp/source")
os.chdir("/tmp/source/" + top)
about = {}
if os.path.exists("pyproject.toml"):
    with open("pyproject.toml", "rb") as file:
        about = tomllib.load(file).get("build-system", {})
sys.path[:0] = [os.path.abspath(path) for path in about.get("backend-path", ())]
name, _, inner = about.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
backend = importlib.import_module(name)
for part in filter(None, inner.split(".")):
    backend = getattr(backend, part)
if mode == "requires":
    ask = getattr(backend, "get_requires_for_build_wheel", lambda settings: [])
    with open(out + "/requires.json", "w") as file:
        json.dump(list(ask({})), file)
else:
    backend.build_wheel(out, {})
"""
"""A front end of PEP 517: it asks a build backend what it needs, or lets it build the wheel."""


@dataclass(frozen=True, slots=True)
class SourceBuilder:
    """Builds wheels on one image, for one user."""

    engine: Callable[[], Engine]
    resolver: Resolver
    unpacker: Unpacker
    image: str
    facts: PythonFacts
    account: Account | None
    """The submitter; ``None``: the user of this process."""
    directory: Path
    limits: Limits

    def resolve(self, wanted: Requirements, log: BuildLog) -> Lock:
        """Return the lock of requirements; packages without a wheel are built.

        Raises:
            Unresolvable: the requirements have no solution, or a build failed.
            IndexUnavailable: the index does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        built: dict[str, Built] = {}
        while True:
            try:
                lock = self.resolver.resolve(
                    wanted, self.facts, self.account, log.token, tuple(built.values())
                )
                uid = os.getuid() if self.account is None else self.account.uid
                return replace(lock, owner=uid) if lock.built else lock
            except Unresolvable as error:
                if error.without_wheel is None or error.without_wheel in built:
                    raise
                for source in self._sources(wanted, error.without_wheel, tuple(built.values()), log):
                    log.line(f"packages: {source.package} {source.version} has no wheel, and is built")
                    built[source.package] = self._built(source, log)

    def resolve_without_builds(self, wanted: Requirements, log: BuildLog) -> Lock:
        """Return the lock of requirements of which each package has a wheel.

        Raises:
            Unresolvable: the requirements have no such solution.
        """
        return self.resolver.resolve(wanted, self.facts, self.account, log.token)

    def _sources(
        self, wanted: Requirements, first: str, built: tuple[Built, ...], log: BuildLog
    ) -> tuple[Source, ...]:
        """Return the source distributions of all packages that have no wheel, as far as that is known."""
        missing = {first}
        while len(missing) + len(built) <= MOST:
            try:
                return self.resolver.find_sources(
                    wanted, self.facts, self.account, log.token, built, frozenset(missing)
                )
            except Unresolvable as error:
                if error.without_wheel is None or error.without_wheel in missing:
                    raise
                missing.add(error.without_wheel)
        raise Unresolvable(f"more than {MOST} packages have no wheel", "")

    def _built(self, source: Source, log: BuildLog) -> Built:
        """Return the wheel of a source distribution, which is built if this user has not built it before."""
        key = hashlib.sha256(f"{source.sha256} {self.image}".encode()).hexdigest()[:32]
        kept = self.directory / key
        if not kept.is_dir():
            make_private(self.directory, self.unpacker.account)
            with tempfile.TemporaryDirectory(dir=self.directory, prefix=".build-") as made:
                wheel = self._build(source, Path(made), log)
                result = Path(made) / "result"
                result.mkdir(mode=0o755)
                shutil.move(wheel, result / wheel.name)
                hand_over(result, self.unpacker.account)
                result.rename(kept)
        [wheel] = kept.iterdir()
        return Built(source, wheel)

    def _build(self, source: Source, work: Path, log: BuildLog) -> Path:
        archive = work / source.name
        log.line(f"packages: {source.name}: downloading {source.size or 0:,} bytes")
        download(source, archive, self.resolver.indexes, log.token)
        needs = build_requirements(archive)
        self._run("requires", archive, needs, work, log)
        more = json.loads((work / "out" / "requires.json").read_text())
        needs = tuple(dict.fromkeys((*needs, *(str(each) for each in more))))
        self._run("build", archive, needs, work, log)
        found = [path for path in (work / "out").iterdir() if path.suffix == ".whl"]
        if len(found) != 1 or found[0].is_symlink() or not found[0].is_file():
            raise Unresolvable(f"{source.package}: its build makes no wheel", "")
        if found[0].stat().st_size > MAX_WHEEL_BYTES:
            raise Unresolvable(f"{source.package}: its wheel is larger than {MAX_WHEEL_BYTES} bytes", "")
        taken = work / found[0].name
        shutil.copyfile(found[0], taken, follow_symlinks=False)
        return taken

    def _run(self, mode: str, archive: Path, needs: tuple[str, ...], work: Path, log: BuildLog) -> None:
        """Run the build backend in a container.

        Raises:
            Unresolvable: it fails; the reason is the last line of its output.
        """
        bare = replace(self.facts, installed=())
        lock = self.resolver.resolve(Requirements(needs), bare, self.account, log.token)
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(mode=0o700)
        owner = self.account or Account(os.getuid(), os.getgid())
        os.chown(out, owner.uid, owner.gid)
        os.chmod(work, 0o755)  # noqa: PTH101, S103  (the directory above is private)
        with self.unpacker.unpacked(lock, bare, log) as root:
            packages = root / "lib" / f"python{bare.python}" / "site-packages"
            packages.mkdir(parents=True, exist_ok=True)
            step = Step(
                self.image,
                (
                    "python3",
                    "-I",
                    "-c",
                    SCRIPT,
                    mode,
                    f"/run/build/{archive.name}",
                    "/run/build/packages",
                    "/out",
                ),
                files={f"/run/build/{archive.name}": archive, "/run/build/packages": packages},
                writable={"/out": out},
                user=(owner.uid, owner.gid),
                memory_bytes=self.limits.memory_bytes,
                seconds=self.limits.seconds,
            )
            end = self.engine().step(step, log.token)
        lines = [line for line in end.output.splitlines() if line.strip()]
        log.lines(lines)
        if end.exit_code != 0:
            why = lines[-1].strip() if lines else f"it ends with {end.exit_code}"
            raise Unresolvable(f"{archive.name}: its build fails: {why}", end.output)


def build_requirements(archive: Path) -> tuple[str, ...]:
    """Return the packages that a source distribution names for its build; nothing of it is executed.

    Raises:
        Unresolvable: it is no archive, or its ``pyproject.toml`` cannot be read.
    """
    try:
        text = _pyproject(archive)
        about = tomllib.loads(text.decode()).get("build-system", {}) if text is not None else {}
        return tuple(str(each) for each in about.get("requires", DEFAULT_REQUIRES))
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        tomllib.TOMLDecodeError,
        UnicodeDecodeError,
        OSError,
    ) as error:
        raise Unresolvable(f"{archive.name}: cannot be read: {error}", "") from error


def _pyproject(archive: Path) -> bytes | None:
    """Return ``pyproject.toml`` in the one top directory of an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            names = [name for name in zipped.namelist() if _is_pyproject(name)]
            return zipped.read(names[0])[:_BLOCK] if names else None
    with tarfile.open(archive) as tar:
        for member in tar:
            if _is_pyproject(member.name) and (file := tar.extractfile(member)) is not None:
                return file.read(_BLOCK)
    return None


def _is_pyproject(name: str) -> bool:
    parts = name.removeprefix("./").split("/")
    return len(parts) == 2 and parts[1] == "pyproject.toml"


def download(source: Source, target: Path, indexes: Any, token: CancellationToken) -> None:  # noqa: ANN401
    """Download a source distribution and check its hash.

    Raises:
        IndexUnavailable: it cannot be downloaded.
        Unresolvable: it is too large, or has another hash.
    """
    trust = ssl.create_default_context(cafile=indexes.ca_file)
    hashing, size = hashlib.sha256(), 0
    request = Request(source.url, headers=_credentials(source.url, indexes.netrc))  # noqa: S310  (of an index)
    try:
        with urlopen(request, timeout=60, context=trust) as answer, target.open("wb") as file:  # noqa: S310
            while block := answer.read(_BLOCK):
                token.check()
                size += len(block)
                if size > MAX_SOURCE_BYTES:
                    raise Unresolvable(f"{source.name}: is larger than {MAX_SOURCE_BYTES} bytes", "")
                hashing.update(block)
                file.write(block)
    except (URLError, OSError) as error:
        raise IndexUnavailable(f"{source.url}: {error}") from error
    if hashing.hexdigest() != source.sha256:
        raise Unresolvable(f"{source.name}: has another sha256 than the index says", "")
    target.chmod(0o644)


def _credentials(url: str, file: Path | None) -> dict[str, str]:
    from base64 import b64encode  # noqa: PLC0415

    host = urlsplit(url).hostname
    if file is None or host is None:
        return {}
    found = netrc.netrc(str(file)).authenticators(host)
    if found is None:
        return {}
    return {"Authorization": "Basic " + b64encode(f"{found[0]}:{found[2]}".encode()).decode()}


def require_no_builds(error: Unresolvable) -> BuildFailed:
    """Return the error for a host that has no containers to build in."""
    found = Unresolvable(f"{error}; building from source needs containers", error.details)
    found.more = error.more
    return found
