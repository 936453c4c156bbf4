"""Slurm's own commands, and what their errors mean."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runner.base.errors import Unavailable
from runner.base.readable import readable_duration
from runner.core.ports.executor import LaunchRefused

PASSES: Final = re.compile(
    r"[Uu]nable to contact|timed out|not responding|temporarily unable|Connection refused|Zero Bytes"
    r"|[Tt]ry again|submit limit|controller\b.*\b(down|busy)|authentication|[Mm]unge|Connection reset"
    r"|Communication connection failure|standby|[Uu]nexpected message|Transport endpoint"
    r"|Required partition not available|I/O error writing|Resource temporarily unavailable|create job record"
    r"|presently disabled|submissions disabled"
)
"""Errors that pass: nothing is known, and the same command may succeed later."""

OVER: Final = re.compile(r"Invalid job id|already completing|already completed|Job/step already")
"""Errors about a job that has ended, or that Slurm has forgotten."""

_WORDS: Final = 400


class Over(Exception):
    """The job has ended, or Slurm does not know it."""


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """Runs Slurm's commands with a clean environment, and in UTC."""

    conf: Path | None = None
    """``slurm.conf``; None: as the daemon's environment or Slurm's own default says."""
    timeout_s: float = 30.0
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))

    def ask(self, program: str, *arguments: str, given: str | None = None) -> str:
        """Return the standard output of a command.

        Raises:
            Unavailable: Slurm does not answer, or cannot now.
            LaunchRefused: Slurm says no; the same command would be refused again.
            Over: the job of the command has ended.
        """
        return self._run(program, *arguments, given=given).stdout

    def ask_loudly(self, program: str, *arguments: str) -> str:
        """Return the output of a command, that on standard error, too; raises what ``ask`` does."""
        done = self._run(program, *arguments)
        return done.stdout + done.stderr

    def _run(
        self, program: str, *arguments: str, given: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Return the output of a command that succeeds.

        Raises:
            Unavailable: Slurm does not answer, or cannot now.
            LaunchRefused: Slurm says no; the same command would be refused again.
            Over: the job of the command has ended.
        """
        try:
            done = subprocess.run(
                [program, *arguments],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                env=self._environment(),
                timeout=self.timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise Unavailable(f"{program}: is not installed here; install Slurm's commands") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{program}: no answer from Slurm within {readable_duration(self.timeout_s)}"
            ) from error
        except OSError as error:
            raise Unavailable(f"{program}: {error.strerror or error}") from error
        if done.returncode == 0:
            return done
        said = describe_failure(done.stderr)
        if PASSES.search(said):
            raise Unavailable(f"{program}: {said}")
        if OVER.search(said) or (program == "scancel" and not done.stderr.strip()):
            raise Over(said)  # scancel says nothing about a job that it finds to be over
        raise LaunchRefused(f"{program}: {said}")

    def _environment(self) -> Mapping[str, str]:
        conf = os.environ.get("SLURM_CONF") if self.conf is None else str(self.conf)
        known = {"PATH": self.path, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
        return known if conf is None else {**known, "SLURM_CONF": conf}


def describe_failure(stderr: str) -> str:
    """Return the message of a command about its failure, in one line and without its own prefixes."""
    lines = (re.sub(r"^\w+: (error|fatal): ", "", line).strip() for line in stderr.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))[-_WORDS:] or "failed and said nothing"
