"""A base image made from Debian's archive alone, where no registry is.

``debootstrap`` (or ``mmdebstrap``, which needs no root) unpacks the packages into a
directory, and the engine imports it as an image of one layer.  Also the way for sites
without an outside network: they have a Debian mirror more often than a registry.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.engine import Engine
from images.errors import BuildFailed
from images.log import BuildLog
from images.settings import LOCAL_BASE

PACKAGES: Final = (
    "ca-certificates",
    "g++",  # torch.compile on the CPU writes C++
    "gcc",  # Triton compiles its launchers
    "libc6-dev",
    "python3",
    "python3-dev",  # Python.h, for both
    "python3-venv",
)

_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NOT_KEPT: Final = ("var/lib/apt/lists", "var/cache/apt", "var/log", "etc/resolv.conf", "etc/hostname", "tmp")
_SOURCES: Final = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What to make."""

    tag: str = LOCAL_BASE
    suite: str = "bookworm"
    mirror: str | None = None  # None: the host's, if it is a Debian; else the tool's own default


def bootstrap(engine: Engine, wanted: Bootstrap, log: BuildLog) -> str:
    """Return the id of a base image made from packages.

    Raises:
        BuildFailed: no tool for it, or the archive does not answer.
    """
    mirror = wanted.mirror or host_mirror(_SOURCES, wanted.suite)
    with tempfile.TemporaryDirectory(prefix="runner-base-") as scratch:
        root, archive = Path(scratch) / "root", Path(scratch) / "root.tar"
        argv = command(wanted.suite, root, mirror)
        log.line(f"base: {' '.join(argv)}")
        log.program(argv)
        _forget(root)
        _pack(root, archive)
        with archive.open("rb") as packed:
            found = engine.load_root(packed, wanted.tag)
    log.line(f"base: {wanted.tag} is {found}")
    return found


def command(suite: str, root: Path, mirror: str | None) -> list[str]:
    """Return the argv that unpacks a Debian.

    Raises:
        BuildFailed: neither tool is installed, or the one that is needs root.
    """
    include = f"--include={','.join(PACKAGES)}"
    where = [suite, str(root), *([mirror] if mirror else [])]
    if os.geteuid() == 0 and shutil.which("debootstrap"):
        # Without the keyring debootstrap would go on unverified.
        return [
            "debootstrap",
            "--variant=minbase",
            "--force-check-gpg",
            f"--keyring={_KEYRING}",
            include,
            *where,
        ]
    if shutil.which("mmdebstrap"):
        return ["mmdebstrap", "--variant=minbase", "--format=directory", include, *where]
    if shutil.which("debootstrap"):
        raise BuildFailed("bootstrap: debootstrap needs root; be root or install mmdebstrap")
    raise BuildFailed("bootstrap: neither debootstrap nor mmdebstrap is installed; install one of them")


def host_mirror(sources: Path, suite: str) -> str | None:
    """Return the archive that the host itself takes a suite from, read from its apt sources."""
    for path in sorted([*sources.glob("sources.list"), *sources.glob("sources.list.d/*")]):
        text = path.read_text(errors="replace")
        found = _in_stanzas(text, suite) if path.suffix == ".sources" else _in_lines(text, suite)
        if found:
            return found
    return None


def _in_stanzas(text: str, suite: str) -> str | None:
    for stanza in re.split(r"\n\s*\n", text):
        words = {name: rest.split() for name, rest in re.findall(r"^([\w-]+):(.*)$", stanza, re.MULTILINE)}
        addresses = [str(uri) for uri in words.get("URIs", []) if uri.startswith("http")]
        if suite in words.get("Suites", []) and "main" in words.get("Components", []) and addresses:
            return addresses[0]
    return None


def _in_lines(text: str, suite: str) -> str | None:
    line = rf"^deb\s+(?:\[[^\]]*\]\s+)?(http\S+)\s+{re.escape(suite)}\s+(?:.*\s)?main\b"
    found = re.search(line, text, re.MULTILINE)
    return str(found[1]) if found else None


def _forget(root: Path) -> None:
    """Remove what belongs to the host or can be fetched again."""
    for name in _NOT_KEPT:
        path = root / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            for below in path.iterdir():
                shutil.rmtree(below) if below.is_dir() and not below.is_symlink() else below.unlink()


def _pack(root: Path, archive: Path) -> None:
    argv = [
        "tar",
        "--directory",
        str(root),
        "--numeric-owner",
        "--one-file-system",
        "--create",
        "--file",
        str(archive),
        ".",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"bootstrap: tar: {done.stderr.strip()}")
