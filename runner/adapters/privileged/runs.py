"""Run directories, as root makes, changes and removes them for a daemon that it does not trust."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jobs.contract import RunPaths
from runner.adapters.host.giving import give_tree
from runner.adapters.host.opening import RunFileOpener
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.privileged.interface import RunOf
from runner.adapters.privileged.site import PrivilegedSite
from runner.base.errors import Refused
from runner.core.ports.users import Owner


class RootRunDirectory(HostRunDirectory):
    """A run directory of a user that the daemon fills: what the daemon has written is given away, checked."""

    def __init__(self, root: Path, owner: Owner, site: PrivilegedSite) -> None:
        super().__init__(root, owner)
        self._daemon_uid = site.walls.daemon_uid

    def begin_work(self, lineage: int, writer: int | None = None, *, afresh: int | None = None) -> str | None:
        writer = self._daemon_uid if writer is None else writer
        return super().begin_work(lineage, writer, afresh=afresh)

    def publish_work(self, lineage: int, snapshot: str) -> None:
        self._give_away(self.work_draft(lineage))
        super().publish_work(lineage, snapshot)

    def move(self, name: str) -> None:
        if self.root.with_name(name).exists():
            raise Refused(f"job {name} has a run directory")
        super().move(name)

    def remove(self) -> None:
        if not self.root.name.startswith(".canary-"):
            raise Refused("only a run directory without a job is removed at once")
        super().remove()

    def _give_away(self, draft: Path) -> None:
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_tree(descriptor, self._daemon_uid, self.owner)
        finally:
            os.close(descriptor)


class _OwnPaths:
    """Calls the methods of a run directory with paths of its own, whatever numbers came."""

    def __init__(self, run: RootRunDirectory) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._run, name))

    def _call(self, method: Callable[..., Any], **values: Any) -> Any:  # noqa: ANN401
        for name, value in values.items():
            if isinstance(value, RunPaths):
                values[name] = self._run.paths(value.attempt, value.lineage)
        return method(**values)


class RootRuns:
    """Satisfies ``interface.PrivilegedRuns``, and opens the run directories of ``PrivilegedRun``."""

    def __init__(self, site: PrivilegedSite) -> None:
        self._site = site
        all_, self.open_below = HostRunDirectories(site.jobs), RunFileOpener(site.jobs).open_below
        self.size, self.use, self.sweep = all_.size, all_.use, all_.sweep
        self.set_aside, self.remove = all_.set_aside, all_.remove

    def run(self, key: RunOf) -> _OwnPaths:
        """Return the run directory of a key; may raise Refused."""
        owner = self._site.walls.owner(key.uid, key.gid)
        return _OwnPaths(RootRunDirectory(self._site.jobs / key.run, owner, self._site))
