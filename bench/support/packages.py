"""Third-party programs for comparison: found, or installed if that is allowed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.support.result import CannotMeasure

SYSTEM_PROGRAMS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Directories of daemons, which the search path of most users leaves out."""


def find(program: str) -> str:
    """Return the path of a program.

    Raises:
        CannotMeasure: the program is missing.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_PROGRAMS))
    found = shutil.which(program, path=path)
    if found is None:
        raise CannotMeasure(f"{program} is not installed")
    return found


def require(programs: Sequence[str], packages: Sequence[str], *, may_install: bool) -> None:
    """Check that programs exist, and install Debian's packages if necessary.

    Raises:
        CannotMeasure: a program is missing and may not or cannot be installed.
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
    """Return why downloads are forbidden, even into a separate directory; empty if they are allowed."""
    if not may_install:
        return "a quick measurement installs nothing"
    if os.environ.get("RUNNER_NO_INSTALL") == "1":
        return "RUNNER_NO_INSTALL=1 forbids to install it"
    return ""


def _forbidden(*, may_install: bool) -> str:
    """Return the reason why installation is forbidden; empty if it is allowed."""
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
