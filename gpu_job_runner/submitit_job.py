"""The job side of the plug-in for submitit: the environment of a task, and the program that runs it.

The source of this module is an argument of ``python -c``, so a job needs submitit and nothing of the runner.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from submitit.core import job_environment, plugins, submission

if TYPE_CHECKING:
    from typing import Any

SAVED, FINAL = 75, 93
"""Exit codes of the contract: stopped, and saved; not to be started again."""


class RunnerJobEnvironment(job_environment.JobEnvironment):  # type: ignore[misc]  # Any to mypy where submitit is absent
    """Knowledge of a task about its job, from the variables of the contract and of a gang."""

    _env = {  # noqa: RUF012  as in the class above
        "job_id": "RUNNER_JOB_ID",
        "num_tasks": "WORLD_SIZE",
        "num_nodes": "GROUP_WORLD_SIZE",
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
    }

    @classmethod
    def name(cls) -> str:
        return "runner"

    def _handle_signals(self, paths: Any, submitted: Any) -> None:
        """Call ``checkpoint()`` when the runner asks the job to stop, and leave as one that goes on later."""
        handler = _SignalHandler(self, paths, submitted)
        signal.signal(signal.SIGTERM, handler.checkpoint_and_try_requeue)
        signal.signal(self._usr_sig(), handler.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:  # noqa: ARG002  the runner counts, not the job
        sys.exit(SAVED)


class _SignalHandler(job_environment.SignalHandler):  # type: ignore[misc]  # as above
    """Handles a stop, which is no time-out: the runner enforces the time limit itself."""

    def has_timed_out(self) -> bool:
        return False


def main(folder: str) -> None:
    """Run the task that is pickled in a folder; an exception of its function is final, as in submitit."""
    environment = RunnerJobEnvironment()
    plugins.get_job_environment = lambda: environment
    try:
        submission.process_job(folder)
    except Exception:  # noqa: BLE001  told by its traceback, and by the pickle of the result
        sys.excepthook(*sys.exc_info())
        sys.exit(FINAL)


if __name__ == "__main__":
    main(sys.argv[1])
