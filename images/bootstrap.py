"""Makes a base image from a Debian archive, for hosts without a registry.

``debootstrap``, or ``mmdebstrap``, which needs no root, unpacks the packages into a directory, and the engine
imports it as an image of one layer.  Sites without internet access have a Debian mirror more often than a
registry.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.errors import BuildFailed, HostFault
from images.log import BuildLog
from images.ports import Engine
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
_NEEDED_MEMORY: Final = 4 * 1024**3

_UNPACK_AND_PACK: Final = """
set -eu
where=$1 root=$2 archive=$3
shift 3
mkdir "$root"
[ "$where" = disk ] || mount -t tmpfs -o mode=755 tmpfs "$root"
"$@"
cd "$root"
# Files of this host, and files that can be downloaded again.
rm -rf var/lib/apt/lists/* var/cache/apt/* var/log/* tmp/* etc/resolv.conf etc/hostname
tar --numeric-owner --one-file-system --create --file "$archive" .
"""
_SOURCES: Final = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The base image to make."""

    tag: str = LOCAL_BASE
    suite: str = "bookworm"
    mirror: str | None = None  # None: that of the host if it is a Debian, else the default of the tool


def bootstrap(engine: Engine, wanted: Bootstrap, log: BuildLog) -> str:
    """Return the id of a base image made from packages.

    Raises:
        BuildFailed: no tool for it is installed.
        HostFault: the tool fails, as it does without its archive.
    """
    mirror = wanted.mirror or host_mirror(_SOURCES, wanted.suite)
    with tempfile.TemporaryDirectory(prefix="runner-base-") as scratch:
        archive = Path(scratch) / "root.tar"
        argv = command(wanted.suite, archive, mirror)
        log.line(f"base: making {wanted.tag} of Debian {wanted.suite} from {mirror or 'the default mirror'}")
        try:
            log.run(argv)
        except BuildFailed as error:
            last = log.tail().rpartition("\n")[2]
            raise HostFault(f"bootstrap: {error}: {last}") from error
        with archive.open("rb") as packed:
            found = engine.load_root(packed, wanted.tag)
    log.line(f"base: {wanted.tag} is {found}")
    return found


def command(suite: str, archive: Path, mirror: str | None) -> list[str]:
    """Return the argv that makes a tar of the root directory of a Debian.

    Raises:
        BuildFailed: neither tool is installed, or the one that is needs root.
    """
    include = f"--include={','.join(PACKAGES)}"
    more = [mirror] if mirror else []
    if os.geteuid() == 0 and shutil.which("debootstrap"):
        root = archive.with_name("root")
        # Without --force-check-gpg it does not verify packages if the keyring is missing.
        tool = ["debootstrap", "--variant=minbase", "--force-check-gpg", f"--keyring={_KEYRING}", include]
        return [*_unpacking(root, archive), *tool, suite, str(root), *more]
    if shutil.which("mmdebstrap"):
        return ["mmdebstrap", "--variant=minbase", include, suite, str(archive), *more]
    if shutil.which("debootstrap"):
        raise BuildFailed("bootstrap: debootstrap needs root; be root or install mmdebstrap")
    raise BuildFailed("bootstrap: neither debootstrap nor mmdebstrap is installed; install one of them")


def _unpacking(root: Path, archive: Path) -> list[str]:
    """Return the beginning of an argv that unpacks in memory if possible, else on the disk.

    The tool syncs each package, which takes three times as long on a disk.  The mount is in a separate mount
    namespace and disappears with it.
    """
    script = ["sh", "-c", _UNPACK_AND_PACK, "sh"]
    if _available_memory() >= _NEEDED_MEMORY and _may_mount():
        return ["unshare", "--mount", *script, "memory", str(root), str(archive)]
    return [*script, "disk", str(root), str(archive)]


def _available_memory() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    argv = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def host_mirror(sources: Path, suite: str) -> str | None:
    """Return the archive from which the host's own apt sources take a release."""
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
