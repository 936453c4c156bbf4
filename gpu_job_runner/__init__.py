"""The runner from Python: submit jobs and functions, wait for them, and read what they tell.

    import gpu_job_runner as runner

    job = runner.submit(["python", "train.py"], gpus=1)
    job.wait()

Nothing is imported before it is used: a program in a container that needs ``gpu_job_runner.attach`` alone
needs no daemon, and the import costs no more than that of a command line.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as ``typing.TYPE_CHECKING``, without the import
if TYPE_CHECKING:
    from gpu_job_runner.function import RemoteError, map, run  # noqa: A004  the word of Python for it
    from gpu_job_runner.job import Job, JobFailed, find, find_all
    from gpu_job_runner.submission import submit, submit_all
    from gpu_job_runner.sweeps import Sweep, sweep
    from runner.base.errors import Refused, RunnerError, Unavailable, UsageError

__all__ = [
    "Job",
    "JobFailed",
    "Refused",
    "RemoteError",
    "RunnerError",
    "Sweep",
    "Unavailable",
    "UsageError",
    "find",
    "find_all",
    "map",
    "run",
    "submit",
    "submit_all",
    "sweep",
]

_HOMES = {
    "gpu_job_runner.function": ("RemoteError", "map", "run"),
    "gpu_job_runner.job": ("Job", "JobFailed", "find", "find_all"),
    "gpu_job_runner.submission": ("submit", "submit_all"),
    "gpu_job_runner.sweeps": ("Sweep", "sweep"),
    "runner.base.errors": ("Refused", "RunnerError", "Unavailable", "UsageError"),
}


def __getattr__(name: str) -> object:
    """Return a name of ``__all__``, imported now."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            _check_runner()
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _check_runner() -> None:
    """Raise ImportError if ``import runner`` would find nothing, or a package of the user's own."""
    from importlib.util import find_spec
    from pathlib import Path

    spec, ours = find_spec("runner"), Path(__file__).parents[1]
    if spec is None:
        raise ImportError("gpu_job_runner: this part is not in images of jobs; install gpu-job-runner")
    if Path(spec.origin or ours / "runner").parents[1] != ours:
        raise ImportError(
            f"{spec.origin}: hides the package runner of gpu-job-runner from this program;"
            " rename that folder, or start Python with -P"
        )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
