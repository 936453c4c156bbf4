"""Locks of packages: the format of PEP 751 (``pylock.toml``), with what comes from the image in a table."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from images.errors import BuildFailed

VERSION: Final = "1.0"
CREATED_BY: Final = "runner"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of a lock."""

    name: str  # of the file
    url: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a lock."""

    name: str
    version: str
    wheel: Wheel


@dataclass(frozen=True, slots=True)
class SystemPackage:
    """A Debian package of a lock."""

    name: str
    version: str
    architecture: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """The name of the file, as an archive has it."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


@dataclass(frozen=True, slots=True)
class Lock:
    """Packages of a job, byte for byte."""

    python: str
    machine: str
    packages: tuple[Package, ...]
    base: Mapping[str, str] = field(default_factory=dict)
    """Packages that the image holds, with their versions."""
    built: Mapping[str, str] = field(default_factory=dict)
    """Packages whose wheels this user has built, with the addresses of their sources."""
    owner: int | None = None
    """The uid of that user."""
    isolated: bool = False
    """True if a job sees no package of the image: it asks for another torch, and gets all of its own."""

    system: tuple[SystemPackage, ...] = ()
    """Debian packages that the image gets below the others."""
    below: str | None = None
    """The operator's image that gets the packages, chosen by its Python; None: that of the job."""

    @property
    def text(self) -> str:
        """The lock as ``pylock.toml``."""
        return "\n".join(_lines(self)) + "\n"

    @property
    def for_installer(self) -> str:
        """The lock for ``uv``, without its Python: ``uv`` compares that with the interpreter that runs it.

        The packages are for the Python of an image, which ``--python-version`` tells.
        """
        return "".join(f"{line}\n" for line in _lines(self) if not line.startswith("requires-python"))

    @property
    def digest(self) -> str:
        """The sha256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The size of all wheels, as far as the index has told it."""
        return sum(each.wheel.size or 0 for each in self.packages)

    def check_base(self, held: Mapping[str, str]) -> None:
        """Check that an image still holds the packages that the lock takes from it.

        Raises:
            BuildFailed: it does not.
        """
        for name, version in self.base.items():
            if held.get(name) != version:
                there = f"has {name} {held[name]}" if name in held else f"has no {name}"
                fact = f"the lock takes {name} {version} from the image, and the image {there} now"
                raise BuildFailed(f"{fact}; submit the job again")


def parse_lock(text: str) -> Lock:
    """Return a lock that ``Lock.text`` has written."""
    found = tomllib.loads(text)
    own = found["tool"]["runner"]
    packages = tuple(
        Package(each["name"], each["version"], _wheel(each["wheels"][0]))
        for each in found.get("packages", ())
    )
    isolated = own.get("isolated", False)
    system = tuple(SystemPackage(**each) for each in own.get("system", ()))
    return Lock(
        own["python"],
        own["machine"],
        packages,
        own.get("base", {}),
        own.get("built", {}),
        own.get("owner"),
        isolated,
        system,
        own.get("below"),
    )


def _wheel(found: Mapping[str, Any]) -> Wheel:
    return Wheel(found["name"], found["url"], found["hashes"]["sha256"], found.get("size"))


def _lines(lock: Lock) -> Iterator[str]:
    yield f"lock-version = {_quoted(VERSION)}"
    yield f"requires-python = {_quoted(f'=={lock.python}.*')}"
    yield f"created-by = {_quoted(CREATED_BY)}"
    for package in sorted(lock.packages, key=lambda package: package.name):
        yield from _package_lines(package)
    yield ""
    yield "[tool.runner]"
    yield f"python = {_quoted(lock.python)}"
    yield f"machine = {_quoted(lock.machine)}"
    if lock.owner is not None:
        yield f"owner = {lock.owner}"
    if lock.below is not None:
        yield f"below = {_quoted(lock.below)}"
    if lock.isolated:
        yield "isolated = true"
    yield ""
    yield "[tool.runner.base]"
    yield from (f"{_quoted(name)} = {_quoted(version)}" for name, version in sorted(lock.base.items()))
    if lock.built:
        yield ""
        yield "[tool.runner.built]"
        yield from (f"{_quoted(name)} = {_quoted(url)}" for name, url in sorted(lock.built.items()))
    for each in lock.system:
        yield from _system_lines(each)


def _system_lines(package: SystemPackage) -> Iterator[str]:
    yield ""
    yield "[[tool.runner.system]]"
    yield f"name = {_quoted(package.name)}"
    yield f"version = {_quoted(package.version)}"
    yield f"architecture = {_quoted(package.architecture)}"
    yield f"sha256 = {_quoted(package.sha256)}"
    yield f"size = {package.size}"


def _package_lines(package: Package) -> Iterator[str]:
    wheel = package.wheel
    yield ""
    yield "[[packages]]"
    yield f"name = {_quoted(package.name)}"
    yield f"version = {_quoted(package.version)}"
    size = "" if wheel.size is None else f", size = {wheel.size}"
    hashes = f"hashes = {{ sha256 = {_quoted(wheel.sha256)} }}"
    yield f"wheels = [{{ name = {_quoted(wheel.name)}, url = {_quoted(wheel.url)}{size}, {hashes} }}]"


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which a string of JSON is, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
