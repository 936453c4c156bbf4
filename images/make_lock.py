"""Makes a lock for another version of CUDA or ROCm, on a machine that reaches the index of its torch.

The packages are those of the CPU lock in the same versions, with the build of torch that the name says and
what that build requires.  ``uv`` resolves them for the Python of a base, whatever this machine's own is, and
writes the hash of each wheel, so a build installs exactly what was resolved.
"""

import platform
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from images.errors import BuildFailed
from images.lock_files import NAME, SHIPPED, LockFile, index_of
from images.packages.program import find_uv, index_arguments, uv_environment
from images.packages.scratch import Scratch
from images.packages.values import Indexes
from images.settings import ImageSettings

PYTHON: Final = "3.11"
"""Of the bases that the runner finds or makes."""

_PIN: Final = re.compile(r"^([a-z0-9-]+)==([^\s,;#]+)", re.MULTILINE)


def build_of(name: str) -> str:
    """Return the build of torch that a lock is named after: cu126 for cuda-12.6, rocm7.1 for rocm-7.1.

    Raises:
        BuildFailed: the name is none of a further lock.
    """
    accelerator, mark, version = name.partition("-")
    if not NAME.fullmatch(name) or not mark or accelerator == "cpu":
        raise BuildFailed(f"lock {name}: no name of a further lock; take one such as cuda-12.6 or rocm-7.1")
    return f"cu{version.replace('.', '')}" if accelerator == "cuda" else f"rocm{version}"


def requirements(build: str) -> str:
    """Return what a lock with a build of torch resolves: the packages of the CPU lock, and that torch."""
    pins = dict(_PIN.findall((SHIPPED / "cpu.txt").read_text()))
    return "".join(
        f"{name}=={version}{f'+{build}' if name == 'torch' else ''}\n" for name, version in pins.items()
    )


def make_lock(name: str, settings: ImageSettings, indexes: Indexes) -> LockFile:
    """Return a lock for the build of torch that its name says.

    Raises:
        BuildFailed: the name is unknown, or no index has the build; the message is that of the resolver.
    """
    build = build_of(name)
    index = index_of(LockFile(name, f"torch==0+{build}".encode()), settings)
    more = () if index is None else (index,)
    known = replace(indexes, extra_index_urls=(*more, *indexes.extra_index_urls))
    with tempfile.TemporaryDirectory(prefix="runner-lock-") as scratch:
        done = subprocess.run(
            [find_uv(), *_arguments(), *index_arguments(known)],
            cwd=scratch,
            env=uv_environment(Path(scratch), known, Scratch(Path(scratch), None)),
            input=requirements(build),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise BuildFailed(f"lock {name}: {' '.join(done.stderr.split()) or 'uv says nothing'}")
    origin = f"# Made by: runner images lock {name}.  For Python {PYTHON} on {platform.machine()}.\n"
    source = f"# torch comes from {index or 'the indexes of pip'}.\n"
    return LockFile(name, f"{origin}{source}{done.stdout}".encode())


def _arguments() -> list[str]:
    return [
        *("pip", "compile", "-", "--quiet", "--no-config", "--no-header", "--no-annotate"),
        *("--generate-hashes", "--only-binary=:all:", "--index-strategy=unsafe-best-match"),
        *(f"--python-version={PYTHON}", f"--python-platform={platform.machine()}-manylinux_2_28"),
    ]
