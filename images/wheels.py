"""The wheels of a lock file, fetched by the host's own pip for the base's Python.

Whatever the host's pip is told (index, extra index, wheel folders, certificate, proxies)
holds without anything being copied into the build: pip downloads here, and the build
installs from a directory with no network.
"""

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from images.errors import BuildFailed
from images.log import BuildLog
from images.recipe import Base, Entry
from images.settings import ImageSettings

_OLDEST_GLIBC: Final = 17
"""2.17, which manylinux2014 means; older wheels are not built any more."""


def wheelhouse(lock: bytes, base: Base, settings: ImageSettings, log: BuildLog) -> Path:
    """Return a directory with the lock's wheels for the base, downloading them if it is not there.

    Raises:
        BuildFailed: pip does not find or get them; its words are in the log.
    """
    place = place_of(lock, base, settings)
    if place.is_dir():
        log.line(f"wheels: already in {place}")
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="partial-") as partial:
        requirements = Path(partial) / "lock.txt"
        requirements.write_bytes(lock)
        wheels = Path(partial) / "wheels"
        _download(requirements, wheels, base, settings, log)
        wheels.rename(place)
    return place


def place_of(lock: bytes, base: Base, settings: ImageSettings) -> Path:
    """Return the directory for a lock's wheels; pip's options choose among indexes, so they count."""
    key = hashlib.sha256(lock + "\0".join(("", *settings.pip_options)).encode()).hexdigest()[:16]
    return settings.cache_dir / "wheelhouse" / f"{key}-{base.machine}-cp{base.python.replace('.', '')}"


def entries(place: Path) -> Iterator[Entry]:
    """Yield the wheels as files of a build context."""
    for wheel in sorted(place.glob("*.whl")):
        yield Entry(f"wheelhouse/{wheel.name}", wheel)


def platforms(base: Base) -> tuple[str, ...]:
    """Return the wheel platforms that the base's C library can load, newest first."""
    major, minor = base.glibc
    newer = (f"manylinux_{major}_{at}_{base.machine}" for at in range(minor, _OLDEST_GLIBC - 1, -1))
    return (*newer, f"manylinux2014_{base.machine}", f"linux_{base.machine}")


def download_arguments(requirements: Path, wheels: Path, base: Base, settings: ImageSettings) -> list[str]:
    """Return the argv that downloads a lock's wheels, and only wheels: nothing of a package is executed."""
    chosen = [f"--platform={platform}" for platform in platforms(base)]
    trust = [] if settings.ca_file is None else [f"--cert={settings.ca_file}"]
    return [
        *[sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"],
        *[
            "--progress-bar=off",
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={base.python}",
        ],
        *[*chosen, f"--dest={wheels}", f"--requirement={requirements}", *trust, *settings.pip_options],
    ]


def _download(requirements: Path, wheels: Path, base: Base, settings: ImageSettings, log: BuildLog) -> None:
    if importlib.util.find_spec("pip") is None:
        raise BuildFailed(f"{sys.executable}: no pip, which fetches the wheels; run it with -m ensurepip")
    log.line(f"wheels: pip download for Python {base.python} on {base.machine}")
    wheels.mkdir()
    # What pip unpacks lies beside the wheels: there is room, and it is gone with them however pip ends.
    environment = {**os.environ, "TMPDIR": str(wheels.parent)}
    log.program(download_arguments(requirements, wheels, base, settings), environment, interest=log.interest)
