"""Downloads the wheels of a lock file for the Python of a base, with the pip of the host.

The settings of the host's pip (indexes, wheel folders, certificate, proxies) apply, and nothing of them is
copied into the build: pip downloads on the host, and the build installs from a directory without a network.
"""

import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from images.errors import BuildFailed, HostFault
from images.lock_files import LockFile, index_of
from images.log import BuildLog
from images.recipe import Base, Entry
from images.settings import ImageSettings

_OLDEST_GLIBC: Final = 17
"""The minor version of glibc 2.17, which manylinux2014 requires; no older wheels are built any more."""

_SILENT: Final = re.compile(r".*(?:connection broken by|Max retries exceeded|timed out|HTTP error 5).*")
"""Lines of pip about an index that another try may find."""


def wheelhouse(lock: LockFile, base: Base, settings: ImageSettings, log: BuildLog) -> Path:
    """Return a directory with the wheels of a lock for a base, and download them if it does not exist.

    Raises:
        BuildFailed: pip cannot download them; its output is in the log.
        HostFault: an index does not answer now.
    """
    directory = wheel_directory(lock, base, settings)
    if directory.is_dir():
        log.line(f"wheels: already in {directory}")
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="partial-") as partial:
        requirements = Path(partial) / "lock.txt"
        requirements.write_bytes(lock.text)
        wheels = Path(partial) / "wheels"
        _download(requirements, wheels, base, settings_of(lock, settings), log)
        wheels.rename(directory)
    return directory


def settings_of(lock: LockFile, settings: ImageSettings) -> ImageSettings:
    """Return the settings with the index of a lock among pip's options."""
    index = index_of(lock, settings)
    more = () if index is None else (f"--extra-index-url={index}",)
    return replace(settings, pip_options=(*settings.pip_options, *more))


def wheel_directory(lock: LockFile, base: Base, settings: ImageSettings) -> Path:
    """Return the directory for the wheels of a lock from the indexes that pip's options choose."""
    options = settings_of(lock, settings).pip_options
    key = hashlib.sha256(lock.text + "\0".join(("", *options)).encode()).hexdigest()[:16]
    return settings.cache_dir / "wheelhouse" / f"{key}-{base.machine}-cp{base.python.replace('.', '')}"


def entries(directory: Path) -> Iterator[Entry]:
    """Yield the wheels as files of a build context."""
    for wheel in sorted(directory.glob("*.whl")):
        yield Entry(f"wheelhouse/{wheel.name}", wheel)


def platforms(base: Base) -> tuple[str, ...]:
    """Return the wheel platforms that fit the C library of a base, the newest first."""
    major, minor = base.glibc
    newer = (f"manylinux_{major}_{at}_{base.machine}" for at in range(minor, _OLDEST_GLIBC - 1, -1))
    return (*newer, f"manylinux2014_{base.machine}", f"linux_{base.machine}")


def download_arguments(requirements: Path, wheels: Path, base: Base, settings: ImageSettings) -> list[str]:
    """Return the argv that downloads the wheels of a lock; no code of a package is executed."""
    chosen = [f"--platform={platform}" for platform in platforms(base)]
    trust = [] if settings.ca_file is None else [f"--cert={settings.ca_file}"]
    return [
        *[sys.executable, "-I", "-m", "pip", "download", "--disable-pip-version-check", "--no-input"],
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
        raise BuildFailed(f"{sys.executable}: no pip, which downloads the wheels; run it with -m ensurepip")
    log.line(f"wheels: pip download for Python {base.python} on {base.machine}")
    wheels.mkdir()
    # pip unpacks beside the wheels: there is space, and the directory is removed however pip ends.
    environment = {**os.environ, "TMPDIR": str(wheels.parent)}
    try:
        log.run(download_arguments(requirements, wheels, base, settings), environment, token=log.token)
    except BuildFailed as error:
        if (silent := _SILENT.search(log.tail())) is not None:
            raise HostFault(f"wheels: the index of packages does not answer: {silent[0]}") from error
        raise
