"""Builds packages that have no wheel, from their source distributions, in containers.

The resolver finds the source distribution and the packages that its build needs, without executing anything.
The container executes the build as the submitter: without network, without capabilities, with nothing but the
sources and those packages.  The wheel that it makes is kept for this user alone.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.build_output import find_cause
from images.packages.lock import Lock
from images.packages.program import find_python, nearly_full, room, run, uv_environment
from images.packages.resolve import IndexUnavailable, Resolver, Unresolvable
from images.packages.scratch import Scratch, lend, lent_directory, parse_names, scratch
from images.packages.unpack import Unpacker
from images.packages.values import Account, Built, Indexes, Limits, PythonFacts, Requirements, Source
from images.ports import Engine, Step, StepEnd

MOST: Final = 20
"""Packages of one job that may have to be built."""

MAX_SOURCE_BYTES: Final = 256 * 1024**2
MAX_WHEEL_BYTES: Final = 2 * 1024**3
MAX_REQUIRES: Final = 200
"""Packages that one build may ask for."""

MAX_REQUIRES_BYTES: Final = 256 * 1024

NOBODY: Final = 65532
"""Builder of a root that builds for itself."""

KILLED: Final = 137
"""The exit code of a container whose program was killed, as for its memory."""

_WHEEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
_PACKAGES: Final = "/run/build/packages"
_BLOCK: Final = 1024**2

SCRIPT: Final = """
import importlib, os, shutil, sys, tarfile, zipfile
mode, source, packages = sys.argv[1:]
result = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
os.makedirs("/tmp/source")
os.makedirs("/tmp/out")
if zipfile.is_zipfile(source):
    zipfile.ZipFile(source).extractall("/tmp/source")
else:
    with tarfile.open(source) as archive:
        archive.extractall("/tmp/source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
[top] = os.listdir("/tmp/source")
os.chdir("/tmp/source/" + top)
about = {}
if os.path.exists("pyproject.toml"):
    try:
        import tomllib
    except ImportError:
        try:
            from pip._vendor import tomli as tomllib
        except ImportError:
            sys.exit("error: the image needs Python 3.11 or pip 22, or newer, to build packages")
    with open("pyproject.toml", encoding="utf-8") as file:
        about = tomllib.loads(file.read()).get("build-system", {})
if mode == "declared":
    result.write("\\n".join(about.get("requires", ["setuptools>=40.8", "wheel"])).encode())
else:
    sys.path.insert(0, packages)
    os.environ["PYTHONPATH"] = packages
    sys.path[:0] = [os.path.abspath(path) for path in about.get("backend-path", ())]
    name, _, inner = about.get("build-backend", "setuptools.build_meta:__legacy__").partition(":")
    backend = importlib.import_module(name)
    for part in filter(None, inner.split(".")):
        backend = getattr(backend, part)
    try:
        if mode == "requires":
            ask = getattr(backend, "get_requires_for_build_wheel", lambda settings: [])
            result.write("\\n".join(ask({})).encode())
        else:
            made = os.path.basename(backend.build_wheel("/tmp/out", {}))
            result.write(made.encode() + b"\\n")
            with open("/tmp/out/" + made, "rb") as wheel:
                shutil.copyfileobj(wheel, result)
    except SystemExit as stop:
        said = "" if stop.code is None else " ".join(str(stop.code).split())
        sys.exit(stop.code if not said or said.isdigit() or said[:5] == "error" else "error: " + said)
result.close()
"""
"""A front end of PEP 517: it says what an archive names for its build, asks its backend what else that needs,
or lets it build the wheel.  The answer is the standard output; a container that has no other way out cannot
fill the disk of this host, nor leave a link for this process to follow.  What PEP 517 says an archive without
``pyproject.toml`` needs is in it."""


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
        built: dict[tuple[str, str], Built] = {}
        while True:
            try:
                lock = self.resolver.resolve(
                    wanted, self.facts, self.account, log.token, tuple(built.values())
                )
            except Unresolvable as error:
                if error.unbuilt is None or error.unbuilt in built:
                    raise
                if len(built) == MOST:
                    raise Unresolvable(f"more than {MOST} packages have no wheel", "") from error
                name, version = error.unbuilt
                source = self.resolver.find_source(error.unbuilt, wanted, self.facts, self.account, log.token)
                log.line(f"packages: {name} {version} has no wheel, and is built")
                built[error.unbuilt] = self._built(replace(source, needed=error.needed), log)
            else:
                uid = os.getuid() if self.account is None else self.account.uid
                return replace(lock, owner=uid) if lock.built else lock

    def _built(self, source: Source, log: BuildLog) -> Built:
        """Return the wheel of a source distribution, which is built if this user has not built it before."""
        key = hashlib.sha256(f"{source.sha256} {self.image}".encode()).hexdigest()[:32]
        lent = lent_directory(self.directory.parent, self.directory.name, self.unpacker.account)
        kept = lent / key
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=lent, prefix=".build-") as made:
                result = lent_directory(Path(made), "result", self.unpacker.account)
                self._build(source, Path(made), result, log)
                result.rename(kept)
        [wheel] = kept.iterdir()
        return Built(source, wheel)

    def _build(self, source: Source, work: Path, result: Path, log: BuildLog) -> None:
        """Put the wheel of a source distribution into a directory."""
        archive = work / "source"
        log.line(f"packages: {source.name}: downloading {(source.size or 0) / 1024**2:.1f} MiB")
        download(source, archive, self.resolver, self.account, log.token)
        needs = self._ask("declared", source, archive, (), log)
        needs = tuple(dict.fromkeys((*needs, *self._ask("requires", source, archive, needs, log))))
        with tempfile.TemporaryFile(dir=work) as answer:
            most = min(MAX_WHEEL_BYTES, room(work) // 4)  # it is copied, and not the only one
            if most <= 0:
                raise nearly_full(self.directory)
            self._run("build", source, archive, needs, answer, most, log)
            answer.seek(0)
            name = answer.readline(1000).decode(errors="replace").removesuffix("\n")
            if _WHEEL.fullmatch(name) is None:
                raise Unresolvable(f"{source.named}: its build makes no wheel", "")
            with (result / name).open("xb") as wheel:
                shutil.copyfileobj(answer, wheel)
                lend(wheel.fileno(), self.unpacker.account)

    def _ask(
        self, mode: str, source: Source, archive: Path, needs: tuple[str, ...], log: BuildLog
    ) -> tuple[str, ...]:
        """Return the packages that a build names; what its code answers may be anything.

        Raises:
            Unresolvable: it is no list of requirements.
        """
        with tempfile.TemporaryFile(dir=archive.parent) as answer:
            self._run(mode, source, archive, needs, answer, MAX_REQUIRES_BYTES, log)
            answer.seek(0)
            try:
                return parse_names(answer.read(), f"{source.named}: its build", MAX_REQUIRES)
            except BuildFailed as error:
                raise Unresolvable(str(error), "") from error

    def _run(  # noqa: PLR0913, PLR0917  (one value per part of a run)
        self,
        mode: str,
        source: Source,
        archive: Path,
        needs: tuple[str, ...],
        answer: IO[bytes],
        most_bytes: int,
        log: BuildLog,
    ) -> None:
        """Run the front end in a container, with the packages that it needs.

        Raises:
            Unresolvable: it fails, or needs packages that cannot be had.
        """
        owner = self.account or Account(os.getuid() or NOBODY, os.getgid() or NOBODY)
        step = Step(
            self.image,
            ("python3", "-I", "-c", SCRIPT, mode, "/run/build/source", _PACKAGES),
            files={"/run/build/source": archive},
            user=(owner.uid, owner.gid),
            memory_bytes=self.limits.memory_bytes,
            seconds=self.limits.seconds,
            result=answer,
            most_bytes=most_bytes,
        )
        try:
            end = self._step(step, needs, source, log)
        except BuildFailed as error:
            if type(error) is not BuildFailed:
                raise
            raise Unresolvable(
                f"{source.named}: its build fails: {str(error).removeprefix('python3: ')}", ""
            ) from error
        log.lines(f"  {line}" for line in end.output.splitlines() if line.strip())
        if end.exit_code != 0:
            why = find_cause(end.output) or f"it ends with {end.exit_code}"
            why = "it is killed, so it may need more memory" if end.exit_code == KILLED else why
            step_further = "its whole output: --verbose" if end.output.strip() else "it says nothing"
            raise Unresolvable(f"{source.named}: its build fails: {why}; {step_further}", end.output)

    def _step(self, step: Step, needs: tuple[str, ...], source: Source, log: BuildLog) -> StepEnd:
        if not needs:
            return self.engine().step(step, log.token)
        bare = replace(self.facts, installed=())
        try:
            lock = self.resolver.resolve(Requirements(needs), bare, self.account, log.token)
        except Unresolvable as error:
            fact = str(error).replace("you require", "it requires")
            raise Unresolvable(
                f"{source.named}: its build needs what cannot be had: {fact}", error.details
            ) from error
        with self.unpacker.unpacked(lock, bare, log) as root:
            packages = root / "lib" / f"python{bare.python}" / "site-packages"
            return self.engine().step(replace(step, files={**step.files, _PACKAGES: packages}), log.token)


def download(
    source: Source, target: Path, resolver: Resolver, account: Account | None, token: CancellationToken
) -> None:
    """Download a source distribution and check its hash.

    Raises:
        IndexUnavailable: it cannot be downloaded.
        Unresolvable: it is too large, has another hash, or is not a file of an index.
        BuildFailed: the download takes too long.
        BuildCancelled: ``token`` was cancelled.
    """
    with scratch(resolver.cache_dir / "resolving", "fetch-", resolver.who_asks(account)) as work:
        if urlsplit(source.url).scheme in {"http", "https"}:
            path = _fetched(source, work, resolver, token)
        else:
            path = _offered(source, resolver.indexes)
        hashing, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as file, target.open("wb") as copy:
                while block := file.read(_BLOCK):
                    size += len(block)
                    if size > MAX_SOURCE_BYTES:
                        raise Unresolvable(
                            f"{source.named}: is larger than {MAX_SOURCE_BYTES // 1024**2} MiB", ""
                        )
                    hashing.update(block)
                    copy.write(block)
        except OSError as error:
            raise IndexUnavailable(f"{source.url}: {error}") from error
    if hashing.hexdigest() != source.sha256:
        raise Unresolvable(f"{source.named}: has another sha256 than the index says", "")
    target.chmod(0o644)


def _fetched(source: Source, work: Scratch, resolver: Resolver, token: CancellationToken) -> Path:
    """Download a source distribution with the rights of whoever resolves; return where it is.

    Raises:
        IndexUnavailable: it cannot be downloaded.
        BuildFailed: the download takes too long.
        BuildCancelled: ``token`` was cancelled.
    """
    path = work.write("source", b"")
    argv = [
        find_python(work.account),
        "-I",
        "-c",
        files("images.packages").joinpath("fetch.py").read_text(),
        source.url,
    ]
    environment = uv_environment(work.path, resolver.indexes, work)
    most = [str(path), str(MAX_SOURCE_BYTES)]
    done = run([*argv, *most], work.path, environment, work.account, resolver.limits, token)
    if done.exit_code != 0:
        raise IndexUnavailable(f"{source.url}: {' '.join(done.output.split()) or 'the download was ended'}")
    return path


def _offered(source: Source, indexes: Indexes) -> Path:
    """Return the file of a folder of the operator's: this process may read others, too.

    Raises:
        Unresolvable: it is in none of them.
    """
    path = Path(os.path.normpath(url2pathname(urlsplit(source.url).path)))
    folders = (url2pathname(urlsplit(each).path) if "://" in each else each for each in indexes.find_links)
    if not source.url.startswith("file:///") or not any(path.is_relative_to(each) for each in folders):
        raise Unresolvable(f"{source.named}: is at no address of an index", "")
    return path
