"""Control groups as systemd makes them: half of the processors for services, and half for logins.

A daemon is a service, with the weight of its unit; each user's login has the weight that all have.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.support.result import CannotMeasure

UNIFIED: Final = Path("/sys/fs/cgroup")
USUAL: Final = 100
"""The weight of a group for which nothing else is said."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The groups of one measurement, and the one that its process came from."""

    root: Path
    before: Path

    def enter(self, name: str, weight: int = USUAL) -> None:
        """Move this process into a group, with what it starts from now on; may raise CannotMeasure."""
        place = self.root / name
        with _control_groups():
            for group in [*reversed(Path(name).parents), Path(name)][1:]:
                path = self.root / group
                path.mkdir(exist_ok=True)
                share = weight if path == place else USUAL
                if (weights := path / "cpu.weight").exists():
                    weights.write_text(str(share))
                else:
                    (path / "cpu.shares").write_text(str(1024 * share // USUAL))
                if path != place and (below := path / "cgroup.subtree_control").exists():
                    below.write_text("+cpu")
            (place / "cgroup.procs").write_text(str(os.getpid()))

    @contextmanager
    def entered(self, name: str, weight: int) -> Iterator[None]:
        """Start what the block starts in a group."""
        self.enter(name, weight)
        try:
            yield
        finally:
            (self.before / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def _control_groups() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotMeasure(f"control groups for processors: {error.strerror}: {error.filename}") from error


@contextmanager
def slices() -> Iterator[Slices]:
    """Yield a place for groups, and remove them.

    Raises:
        CannotMeasure: there are no control groups for processors, or they cannot be made.
    """
    lines = [each.split(":", 2) for each in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next(
        (Path("/sys/fs/cgroup/cpu", path[1:]) for _, names, path in lines if "cpu" in names.split(",")), None
    )
    before = first or next(UNIFIED / path[1:] for _, names, path in lines if not names)
    root = (UNIFIED / "cpu" if first else UNIFIED) / f"runner-bench-{os.getpid()}"
    try:
        with _control_groups():
            root.mkdir()
            if first is None:
                (UNIFIED / "cgroup.subtree_control").write_text("+cpu")
                (root / "cgroup.subtree_control").write_text("+cpu")
        yield Slices(root, before)
    finally:
        for directory in sorted(root.glob("**/"), reverse=True):
            with suppress(OSError):  # a process of a user is still there
                directory.rmdir()
