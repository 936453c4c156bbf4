"""Programs of others that we compare with: found, or installed where that is allowed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.support.result import CannotMeasure

SYSTEM_PROGRAMS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where daemons lie, which the search path of most users leaves out."""


def find(program: str) -> str:
    """Return where a program is.

    Raises:
        CannotMeasure: it is not here.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_PROGRAMS))
    found = shutil.which(program, path=path)
    if found is None:
        raise CannotMeasure(f"{program} is not installed")
    return found


def require(programs: Sequence[str], packages: Sequence[str], *, may_install: bool) -> None:
    """See that programs are here, with the help of Debian's packages if need be.

    Raises:
        CannotMeasure: one is not, and may not or cannot be installed.
    """
    try:
        for program in programs:
            find(program)
    except CannotMeasure as missing:
        reason = _forbidden(may_install=may_install)
        if reason:
            raise CannotMeasure(f"{missing}, and {reason}") from missing
        _install(packages)


def may_fetch(*, may_install: bool) -> str:
    """Return why nothing may be fetched, not even into a place of its own; empty when it may."""
    if not may_install:
        return "a quick measurement installs nothing"
    if os.environ.get("RUNNER_NO_INSTALL") == "1":
        return "RUNNER_NO_INSTALL=1 forbids to install it"
    return ""


def _forbidden(*, may_install: bool) -> str:
    """Return why nothing may be installed; empty when it may."""
    reason = may_fetch(may_install=may_install)
    if reason:
        return reason
    if os.geteuid() != 0 or shutil.which("apt-get") is None or not Path("/etc/debian_version").exists():
        return "only root on Debian or Ubuntu can install it here"
    return ""


def _install(packages: Sequence[str]) -> None:
    print(f"installing {' '.join(packages)} with apt-get (RUNNER_NO_INSTALL=1 forbids it)", flush=True)
    environment = dict(os.environ) | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update"], env=environment, capture_output=True, check=False)
    argv = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise CannotMeasure(f"apt-get could not install {' '.join(packages)}: {said}")
