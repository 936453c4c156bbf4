"""The progress of a program that writes no report, from its log."""

from jobs.contract import Program, RunPaths, Status
from runner.agent.ports import RunDirectory
from runner.files.revision import Revision


def read_log_status(directory: RunDirectory, paths: RunPaths, revision: Revision) -> Status | None:
    """Return the progress that the log of an attempt tells; None if it tells none, or of a built-in workload.

    The total number of steps is that of the job file, if it says one.
    """
    plan = revision.job.workload
    if not isinstance(plan, Program):
        return None
    told = directory.log_status(paths, revision.job.progress.pattern)
    if told is None or plan.steps is None:
        return told
    return told.model_copy(update={"total_steps": plan.steps})
