"""The time that keeping code adds to a submission, beside ``git status`` in the same directory."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.support import interleave
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from runner.adapters.host.code_snapshot.snapshots import CodeLimits, HostCodeSnapshots
from runner.adapters.host.users import HostUsers

BENCH: Final = "snapshot"
OURS: Final = "snapshot of {:,} files, nothing new"
STATUS: Final = "git status"
AIM_RATIO: Final = 2.0
A_DIRECTORY: Final = 25
"""Files in each directory."""

GIT: Final = (
    "git",
    "-c",
    "user.name=bench",
    "-c",
    "user.email=bench@example.org",
    "-c",
    "commit.gpgsign=false",
)


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield a snapshot of a directory in which nothing has changed since the last one."""
    effort, place = scratch.effort, scratch.directory("snapshot")
    code, users = make_repository(place / "code", effort.code_files), HostUsers()
    kept = HostCodeSnapshots(place / "store", users, CodeLimits())
    me = users.find_user(os.getuid(), os.getgid())
    kept.take(me, code)
    interleave.wait_for("files older than a look", lambda: _is_old(code), 60, 0.1)
    try:
        seconds = interleave.interleave(
            effort.snapshots,
            effort.warmups,
            {
                OURS: interleave.time_call(lambda: kept.take(me, code)),
                STATUS: interleave.time_command(["git", "status"], dict(os.environ), code),
            },
        )
    finally:
        users.close()
    ours = in_milliseconds(OURS.format(effort.code_files), seconds[OURS])
    yield Result(BENCH, ours, in_milliseconds(STATUS, seconds[STATUS]), Aim(AIM_RATIO, "ratio"))


def make_repository(code: Path, files: int) -> Path:
    """Return a directory with a git repository of small files.

    Raises:
        CannotMeasure: there is no git.
    """
    for number in range(files):
        place = code / f"part{number // A_DIRECTORY % 10}" / f"package{number // A_DIRECTORY}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"module{number}.py").write_text(f"NUMBER = {number}\n" * 40)
    (code / ".gitignore").write_text("*.log\n__pycache__/\n/out/\n*.egg-info/\n.venv/\n")
    try:
        for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "bench")):
            subprocess.run([*GIT, *arguments], cwd=code, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotMeasure(f"git: {error}") from error
    return code


def _is_old(code: Path) -> bool:
    """Return True if the repository was last changed so long ago that its times prove something."""
    return time.time() - (code / ".git" / "index").stat().st_mtime > 2
