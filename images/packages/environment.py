"""Environments with the packages of a lock on this host, for attempts that are plain processes."""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from images.errors import BuildFailed
from images.file_lock import locked
from images.log import BuildLog
from images.packages.layer import environment_files
from images.packages.lock import Lock, parse_lock
from images.packages.probe import SCRIPT, parse_facts
from images.packages.store import PackageSettings
from images.packages.unpack import Unpacker, as_failure
from images.packages.values import PythonFacts

ADDRESS: Final = 16
"""Digits of the digest in the name of an environment."""


def host_facts() -> PythonFacts:
    """Return the Python of this process and its packages.

    Raises:
        BuildFailed: it cannot be started.
    """
    asked = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise BuildFailed(f"{sys.executable}: ends with {asked.returncode}: {asked.stderr.strip()[-500:]}")
    return parse_facts(json.loads(asked.stdout))


@dataclass(frozen=True, slots=True)
class EnvironmentStore:
    """Virtual environments below the cache directory, one for each set of wheels."""

    settings: PackageSettings
    facts: Callable[[], PythonFacts]

    def place(self, text: str) -> Path | None:
        """Return the directory of a lock's environment, which may not be there; None if it needs none."""
        lock = parse_lock(text)
        return self._directory(lock) if lock.packages else None

    def ensure(self, text: str, log: BuildLog) -> None:
        """Make the environment of a lock if it is not there.

        Raises:
            BuildFailed: a wheel has vanished, or this host has other packages than the lock takes from it.
            BuildCancelled: the token of the log was cancelled.
        """
        lock = parse_lock(text)
        lock.check_base(self.facts().versions)
        if lock.packages and not self._directory(lock).is_dir():
            directory = self._directory(lock)
            waiting = partial(log.line, "packages: waiting for another build of the same packages")
            with locked(self.settings.cache_dir, directory.name, waiting, log.token):
                if not directory.is_dir():
                    self._make(lock, directory, log)

    def _make(self, lock: Lock, directory: Path, log: BuildLog) -> None:
        settings, facts = self.settings, replace(self.facts(), prefix=str(directory))
        log.line(f"packages: {len(lock.packages)} packages, {lock.size_bytes / 1024**2:.1f} MiB of wheels")
        packages = settings.cache_dir / "packages"
        unpacker = Unpacker(packages, settings.indexes, settings.account, settings.limits)
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (
            unpacker.unpacked(lock, facts, log) as root,
            tempfile.TemporaryDirectory(dir=directory.parent, prefix=".partial-") as partial_,
        ):
            made = Path(partial_) / "environment"
            shutil.copytree(root, made, symlinks=True)  # files of the daemon's own, which no job can change
            with as_failure("a package has what an environment has"):
                _write(made, environment_files(root, facts, isolated=lock.isolated).items())
            _open_for_reading(made)
            log.token.check()
            made.rename(directory)
        log.line(f"packages: {directory} is made")

    def _directory(self, lock: Lock) -> Path:
        wheels = sorted(each.wheel.sha256 for each in lock.packages)
        facts = self.facts()
        known = "\n".join((*wheels, facts.executable, *facts.site_dirs, *facts.scripts, str(lock.isolated)))
        address = hashlib.sha256(known.encode()).hexdigest()[:ADDRESS]
        return self.settings.cache_dir / "packages" / "environments" / address


def _write(root: Path, files: Iterable[tuple[str, str | bytes]]) -> None:
    for name, content in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
            path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def _open_for_reading(root: Path) -> None:
    """Let everybody read an environment, and nobody but this process change it."""
    root.chmod(0o755)
    for path in root.rglob("*"):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runs else 0o644)
