"""Warnings for submitters where attempts run as plain processes of the host, without containers.

``executor: auto`` takes processes when no engine answers.  That is a smaller wall between jobs, and there is
no image: the program runs with the daemon's own Python, which may have no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import TRACKER_MODULES, TRACKER_PACKAGES, Program
from runner.files.job.model import JobFile


@dataclass(frozen=True, slots=True)
class HostProcesses:
    """Interpreter and modules with which a daemon without containers runs attempts."""

    python: str
    """The interpreter of the built-in workloads, and ``python`` of programs."""

    has_module: Callable[[str], bool]
    """Test of that interpreter for a module; it may be installed while the daemon runs."""

    engine_problem: str | None
    """Reason for which no engine was taken; None: the settings ask for processes."""

    closed: str | None = None
    """The directory with the interpreter that the users of root's daemon cannot enter; None: none."""

    def packages_problem(self) -> str | None:
        """Return the obstacle to a job's packages, whose environment is one of that interpreter."""
        if self.closed is None:
            return None
        fact = f"the job would not find them: {self.python} has them, and {self.closed} is closed to you"
        return f"{fact}; the operator installs the runner with a Python outside of it (runner doctor)"

    def warnings(self) -> tuple[str, ...]:
        """Return that jobs run without containers, unless the settings say so themselves."""
        if self.engine_problem is None:
            return ()
        fact = f"runs as a plain process with {self.python}, not in a container: {self.engine_problem}"
        remedy = (
            "give the daemon's user access to a container engine (often the group docker) and let runner stop"
            " and the next command start it again, or accept this with executor: process in the settings"
        )
        return (f"{fact}; {remedy}",)

    def torch_problem(self, job: JobFile) -> str | None:
        """Return the reason why a built-in workload cannot run here; None if it can."""
        if isinstance(job.workload, Program) or self.has_module("torch"):
            return None
        return (
            f"{job.workload.kind} needs torch, which {self.python} lacks, and jobs have no containers here"
            "; install it there, or give the daemon a container engine"
        )

    def starts_python(self, job: JobFile) -> bool:
        """Return True if a job needs the daemon's interpreter; a program finds another one on its PATH."""
        return not isinstance(job.workload, Program)

    def tracking_problem(self, job: JobFile) -> str | None:
        """Return the packages of its trackers that a built-in workload lacks here; None if it has all."""
        wanted = [(TRACKER_PACKAGES[name], TRACKER_MODULES[name]) for name in job.track.trackers]
        lacking = [package for package, module in wanted if not self.has_module(module)]
        if isinstance(job.workload, Program) or not lacking:
            return None
        fact = f"needs {' and '.join(lacking)}, which {self.python} lacks, and jobs have no containers here"
        return f"{fact}; install it there: {self.python} -m pip install {' '.join(lacking)}"
