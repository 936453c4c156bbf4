"""The host's side of the run directory: makes it, and reads what came back.

Parents belong to the daemon's user, leaves (``attempts/N``, ``lineages/L``, ``home``) to the
job's, so nothing is ever created below a directory that the job can change.  What lies in a
leaf is hostile: regular files only, no links, limited sizes, unknown keys ignored.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from jobs.contract import (
    MAX_REPORT_BYTES,
    AttemptSpec,
    CheckpointInvalid,
    Report,
    Result,
    RunPaths,
    Status,
    checkpoints,
    dump,
    read_limited,
    verify,
)
from runner.errors import Unavailable
from runner.ports import Owner

R = TypeVar("R", bound=Report)


class RunDirectory:
    """``<state>/jobs/<id>`` of one job."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self.root = root
        self._owner = owner

    def paths(self, attempt: int, lineage: int) -> RunPaths:
        return RunPaths(self.root, attempt, lineage)

    def create(self) -> None:
        """Make the directory of the job; what is there already stays.

        Raises:
            Unavailable: the file system says no.
        """
        try:
            for parent in (self.root, self.root / "attempts", self.root / "lineages", self.root / "secrets"):
                parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._leaf(self.root / "home", {})
        except OSError as error:
            raise Unavailable(f"{self.root}: {error.strerror}") from error

    def prepare(self, spec: AttemptSpec, secrets: Mapping[str, bytes]) -> RunPaths:
        """Make the leaves of one attempt, with its spec in place; idempotent.

        Raises:
            Unavailable: the file system says no, for instance because it is full.
        """
        paths = self.paths(spec.attempt, spec.lineage)
        try:
            self._leaf(paths.lineage_dir, {})
            self._leaf(paths.attempt_dir, {paths.spec.name: dump(spec).encode(), paths.log.name: b""})
            for name, content in secrets.items():
                self._secret(self.secret(name), content)
        except OSError as error:
            raise Unavailable(f"{error.filename or self.root}: {error.strerror}") from error
        return paths

    def _leaf(self, path: Path, files: Mapping[str, bytes]) -> None:
        """Publish a directory that belongs to the job: complete, or not there."""
        if path.is_dir():
            return
        draft = path.parent / f".{path.name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        for name, content in files.items():
            (draft / name).write_bytes(content)
            self._give(draft / name, 0o600)
        self._give(draft, 0o700)
        draft.rename(path)

    def secret(self, name: str) -> Path:
        """Return where the copy of a secret lies while the job is unfinished."""
        return self.root / "secrets" / name

    def _secret(self, path: Path, content: bytes) -> None:
        """Copy a secret to where only the job can read it, never its group or others."""
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        self._give(path, 0o400)

    def _give(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, self._owner.uid, self._owner.gid, follow_symlinks=False)

    def forget_secrets(self) -> None:
        """Remove the copies of the job's secrets: the job has ended."""
        shutil.rmtree(self.root / "secrets", ignore_errors=True)

    def status(self, paths: RunPaths) -> Status | None:
        """Return the last heartbeat, or None when there is none that can be read."""
        return read_report(paths.status, Status)

    def result(self, paths: RunPaths) -> Result | None:
        return read_report(paths.result, Result)

    def newest_checkpoint(self, paths: RunPaths) -> tuple[int | None, tuple[str, ...]]:
        """Return (step of the newest valid checkpoint, what is wrong with newer ones), content verified."""
        rejected = []
        for step, directory in checkpoints(paths.lineage_dir):
            try:
                verify(directory)
            except CheckpointInvalid as error:
                rejected.append(f"{directory.name}: {error}")
            else:
                return step, tuple(rejected)
        return None, tuple(rejected)


def read_report(path: Path, model: type[R]) -> R | None:
    """Return a report that the job wrote, or None when it is missing, too large or not what it should be."""
    try:
        return _parse(model, read_limited(path, MAX_REPORT_BYTES))
    except (OSError, ValidationError):
        return None


def _parse(model: type[R], raw: bytes) -> R:
    return model.model_validate_json(raw)
