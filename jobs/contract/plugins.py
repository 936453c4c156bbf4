"""Plug-ins: what other distributions add to the runner by entry points, each loaded once and checked.

The entry points are those of this process's own environment.  Code that somebody else may write to is not
imported: root's daemon would run it with root's rights.  A plug-in that cannot be used is told, and the
others are there.  The runner's own parts are named and loaded in the same way, in one table of each kind.
"""

import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, Generic, Literal, TypeAlias, TypeVar

T = TypeVar("T")

Group: TypeAlias = Literal["workloads", "executors", "channels", "policies"]

PREFIX: Final = "gpu_job_runner."
"""Of the groups in the metadata of a distribution."""

HEAVY: Final = "torch"
"""A module that takes a second and 200 MiB, and that no daemon needs."""


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A plug-in that is installed and cannot be used."""

    group: Group
    name: str
    distribution: str
    error: str

    def __str__(self) -> str:
        return f"{self.group}: {self.name} of {self.distribution}: {self.error}"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plug-in that is in use, with the version of its distribution."""

    group: Group
    name: str
    distribution: str
    package: Path
    """The directory of its package, or the file of a single module."""
    metadata: Mapping[str, str]
    """Texts by path, from which another environment knows its entry points."""


@dataclass(frozen=True, slots=True)
class PluginRegistry(Generic[T]):
    """All that is known of one group: the runner's own by name, and then those of other distributions."""

    found: Mapping[str, T]
    plugins: tuple[Plugin, ...] = ()
    broken: tuple[BrokenPlugin, ...] = ()

    def why_not(self, name: str) -> str:
        """Return the reason why a plug-in of this name cannot be used; empty if there is none."""
        return next((f"; {each}" for each in self.broken if each.name == name), "")


Check: TypeAlias = Callable[[str, object], T]
"""Returns the value of an entry point as what it must be, or raises an error of one line."""


def load_plugins(group: Group, own: Mapping[str, str], check: Check[T]) -> PluginRegistry[T]:
    """Return the registry of a group; ``own`` has the runner's own as ``module:attribute``."""
    found = {name: check(name, EntryPoint(name, value, group).load()) for name, value in own.items()}
    plugins, broken = list[Plugin](), list[BrokenPlugin]()
    for point in sorted(entry_points(group=PREFIX + group), key=lambda point: (point.name, point.value)):
        distribution = _distribution(point)
        try:
            if point.name in found:
                raise ValueError("the name is taken; rename it")  # noqa: TRY301  (told with the others)
            found[point.name] = check(point.name, _imported(point))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (code of somebody else)
            broken.append(BrokenPlugin(group, point.name, distribution, _one_line(error)))
        else:
            package, metadata = _package(point.module), _metadata(point)
            plugins.append(Plugin(group, point.name, distribution, package, metadata))
    return PluginRegistry(found, tuple(plugins), tuple(broken))


def plugin_names(group: Group) -> tuple[str, ...]:
    """Return the names that plug-ins of a group have, without loading them."""
    return tuple(sorted({point.name for point in entry_points(group=PREFIX + group)}))


def plugin_of_type(kind: type[T]) -> Check[T]:
    """Return the check of a group whose values are records of one type."""

    def check(_name: str, value: object) -> T:
        if not isinstance(value, kind):
            raise TypeError(f"is a {type(value).__name__}, and must be a {kind.__name__}")
        return value

    return check


def _imported(point: EntryPoint) -> object:
    """Return the value of an entry point.

    Raises:
        ValueError: somebody else may change its code, or it imports what a daemon must not load.
    """
    if other := _writable_by_others(_package(point.module)):
        raise ValueError(f"{other} may be changed by other users; install it where only its owner writes")
    was_there = HEAVY in sys.modules
    value: object = point.load()
    if HEAVY in sys.modules and not was_there:
        raise ValueError(f"imports {HEAVY}, which a daemon must not load; import it where the work is done")
    return value


def _writable_by_others(path: Path) -> Path | None:
    """Return the part of a path that belongs to somebody who does not own the runner's code."""
    trusted = {0, os.geteuid(), Path(__file__).stat().st_uid}
    for each in (path, *path.resolve().parents):
        about = each.stat()
        open_to_all = about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX
        if about.st_uid not in trusted or open_to_all:
            return each
    return None


def _package(module: str) -> Path:
    """Return the directory of the package of a module, or the file of a single module.

    Raises:
        ImportError: there is none.
    """
    name = module.partition(".")[0]
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no package {name}")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin


def _metadata(point: EntryPoint) -> Mapping[str, str]:
    """Return the texts of the distribution of an entry point that say which one it is, and what it has."""
    assert point.dist is not None  # noqa: S101  of ``entry_points``
    place = f"{point.dist.name.replace('-', '_')}-{point.dist.version}.dist-info"
    texts = {name: point.dist.read_text(name) for name in ("METADATA", "entry_points.txt")}
    return {f"{place}/{name}": text for name, text in texts.items() if text is not None}


def _distribution(point: EntryPoint) -> str:
    assert point.dist is not None  # noqa: S101  of ``entry_points``
    return f"{point.dist.name} {point.dist.version}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
