"""The four nodes of ``scripts/slurm``, with control groups and containers, as the tests use them.

A cluster that runs already is used and left running; one that was started here is stopped at the end.
While it is measured, no test that breaks it begins, and the measurement begins once no such test is running.
"""

import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals.protocol import run_command
from bench.rivals.slurm import controller_answers
from bench.support.result import CannotMeasure

SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "slurm"
USER: Final = "nobody"


@dataclass(frozen=True, slots=True)
class SmallCluster:
    """A cluster, by its configuration."""

    conf: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def said(self, program: str, *arguments: str) -> str:
        """Return the output of a command of Slurm."""
        return run_command([program, *arguments], self.environment)

    def sbatch(self, script: Path, output: Path, options: Sequence[str] = ()) -> str:
        """Submit a script as its user, and return the number of the job."""
        user = pwd.getpwnam(USER)
        owner = (f"--uid={user.pw_uid}", f"--gid={user.pw_gid}")
        return self.said("sbatch", "--parsable", *owner, f"--output={output}", *options, str(script))

    def settings(self, **more: object) -> dict[str, object]:
        """Return the settings of a daemon whose jobs run here."""
        user = pwd.getpwnam(USER)
        return {
            "root_jobs_run_as": {"uid": user.pw_uid, "gid": user.pw_gid},
            "slurm": {"conf": str(self.conf), **more},
        }


@contextmanager
def small_cluster(*, may_install: bool) -> Iterator[SmallCluster]:
    """Yield the cluster.

    Raises:
        CannotMeasure: it is not here, and cannot be started.
    """
    if os.geteuid() != 0:
        raise CannotMeasure("only root can start the small Slurm: slurmd runs the jobs of several users")
    place = Path(os.environ.get("RUNNER_SLURM_DIR", "/run/runner-slurm"))
    was_there = (place / "slurm.conf").exists()
    try:
        if not was_there:
            _start(may_install=may_install)
        there = SmallCluster(place / "slurm.conf")
        # The script brings a node back that somebody has drained on purpose.
        if not controller_answers(there.environment):
            _start(may_install=may_install)
        yield there
    finally:
        if not was_there:
            subprocess.run([SCRIPT, "stop"], check=False, capture_output=True)


def _start(*, may_install: bool) -> None:
    """Start what does not run."""
    more = {} if may_install else {"RUNNER_NO_INSTALL": "1"}
    done = subprocess.run([SCRIPT], env={**os.environ, **more}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"scripts/slurm: {done.stderr.strip().rpartition(chr(10))[2]}")
