"""Looks at the file system with the eyes of the person who asked, never with root's.

Each question is a short-lived child that has given up everything first, so no race between
the check and the use can make the daemon read what its caller may not.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner import spec_paths
from runner.errors import Unavailable, UsageError
from runner.source import one_line
from runner.spec_paths import Kind

LIMIT_S: Final = 10
MAX_SECRET_BYTES: Final = 1024**2

# Answers are exit codes: shells differ in their words.
_LOOK: Final = """
[ -e "$1" ] || exit 20
[ -r "$1" ] || exit 21
[ ! -d "$1" ] || [ -x "$1" ] || exit 21
[ "$2" != writable ] || [ -w "$1" ] || exit 22
[ "$2" != directory ] || [ -d "$1" ] || exit 23
[ "$2" != file ] || [ -f "$1" ] || exit 24
[ -d "$1" ] || [ -f "$1" ] || exit 25
"""
_PROBLEMS: Final = {
    20: "does not exist, or not for you",
    21: "you may not read it",
    22: "you may not write to it; add read_only: true",
    23: "is not a directory",
    24: "is not a file",
    25: "is neither a file nor a directory",
}


@dataclass(frozen=True, slots=True)
class Person:
    """Whoever asked: uid, primary gid and supplementary groups, from the host's own records."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str


def person(uid: int, gid: int) -> Person:
    """Return who a peer is; the host's records outrank what the connection carried."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Person(uid, gid, (gid,), str(uid))
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Person(uid, entry.pw_gid, groups, entry.pw_name)


def problem(who: Person, path: Path, kind: Kind) -> str | None:
    """Return what stands against using ``path`` as somebody; None when nothing does."""
    if not _must_drop(who):
        return spec_paths.problem_with(path, kind)
    code = _child(who, ["/bin/sh", "-c", _LOOK, "sh", str(path), kind]).returncode
    if code:
        return f"{one_line(str(path))}: {_PROBLEMS.get(code, 'cannot be looked at')}"
    return spec_paths.of_the_system(path, real(who, path))


def read(who: Person, path: Path) -> bytes:
    """Return the content of a small file, read as that person.

    Raises:
        UsageError: the person may not read it, or it is too large for a secret.
    """
    answer = _child(who, ["head", "-c", str(MAX_SECRET_BYTES + 1), "--", str(path)])
    if answer.returncode:
        raise UsageError(problem(who, path, "file") or f"{one_line(str(path))}: cannot be read")
    if len(answer.stdout) > MAX_SECRET_BYTES:
        raise UsageError(f"{one_line(str(path))}: is larger than {MAX_SECRET_BYTES} bytes")
    return answer.stdout


def real(who: Person, path: Path) -> Path:
    """Return the path without symbolic links, resolved as that person."""
    answer = _child(who, ["readlink", "-ze", "--", str(path)])
    return Path(os.fsdecode(answer.stdout.removesuffix(b"\0"))) if answer.returncode == 0 else path


def _must_drop(who: Person) -> bool:
    return os.geteuid() == 0 and who.uid != 0


def _child(who: Person, argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    drop = _must_drop(who)
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
            timeout=LIMIT_S,
            user=who.uid if drop else None,
            group=who.gid if drop else None,
            extra_groups=who.groups if drop else None,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{argv[-1]}: no answer from the file system in {LIMIT_S} s") from error
