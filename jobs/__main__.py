"""The program in the container: ``python -m jobs --attempt N --lineage L``.

The signal handlers are installed first, so that no stop request is lost.  The spec is read
before torch is imported, so that an error in it is reported without waiting seconds for torch.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from jobs.contract import (
    JOB_DIR,
    AttemptSpec,
    Cause,
    ExitCode,
    RankPaths,
    RunPaths,
    first_problem,
    read_limited,
)
from jobs.training.failures import UNEXPECTED, Failure, InvalidSpec, NoValidCheckpoint, is_disk_full
from jobs.training.launcher import own_rank
from jobs.training.report import Reporter, complain, say
from jobs.training.signals import StopRequests, listen

MAX_SPEC_BYTES = 1024 * 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Run one attempt and return its exit status.

    An unexpected error is recorded in the result and raised again, so that its traceback is the
    last entry of the log.
    """
    requests = listen()
    paths = _paths(argv)
    rank = own_rank()
    reporter = Reporter(RankPaths(paths.root, paths.attempt, paths.lineage, rank) if rank else paths)
    try:
        _attempt(paths, reporter, requests)
    except Failure as failure:
        return _fail(reporter, failure)
    except BaseException as error:  # the outermost frame: the cause is reported, and the error raised again
        if is_disk_full(error):
            return _finish(reporter, Cause.DISK_FULL, UNEXPECTED, _one_line(error))
        reporter.finish(Cause.EXCEPTION, _one_line(error))
        raise
    reporter.finish(Cause.COMPLETED, reporter.progress.end)
    return ExitCode.FINISHED


def _paths(argv: Sequence[str] | None) -> RunPaths:
    parser = argparse.ArgumentParser(prog="python -m jobs", description="Train one attempt of a job.")
    parser.add_argument("--root", type=Path, default=JOB_DIR, help="the run directory (default: %(default)s)")
    parser.add_argument("--attempt", type=int, required=True, help="reads attempts/N/spec.json below it")
    parser.add_argument("--lineage", type=int, required=True, help="keeps checkpoints in lineages/L below it")
    asked = parser.parse_args(argv)
    return RunPaths(asked.root, asked.attempt, asked.lineage)


def _attempt(paths: RunPaths, reporter: Reporter, requests: StopRequests) -> None:
    spec = read_spec(paths)
    reporter.progress.total_steps = spec.workload.known_steps
    reporter.begin()
    if own_rank() == 0:
        reporter.track(spec)
    say(f"job {spec.job_id}, revision {spec.revision}, attempt {spec.attempt}, lineage {spec.lineage}")

    # OpenMP threads that busy-wait are ten times slower than a single thread when another process uses a
    # core.  On 2 cores with one busy neighbour: 24 s spinning, 2.4 s sleeping, 2.1 s with one thread.
    # Without a neighbour: 1.3 s spinning, 1.8 s sleeping.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
    gc.disable()  # imports leave no garbage, and collecting costs a tenth of the time to load torch
    from jobs.training import loop as trainer  # noqa: PLC0415 - torch takes seconds to load: after the spec

    gc.freeze()
    gc.enable()
    trainer.run(spec, paths, reporter, requests)


def read_spec(paths: RunPaths) -> AttemptSpec:
    """Return the attempt's spec.

    Raises:
        InvalidSpec: The spec is missing, too large or not valid, or it belongs to another attempt.
    """
    try:
        spec = AttemptSpec.model_validate_json(read_limited(paths.spec, MAX_SPEC_BYTES))
    except OSError as error:
        raise InvalidSpec(f"{paths.spec}: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidSpec(f"{paths.spec}: {first_problem(error)}") from error
    if (spec.attempt, spec.lineage) != (paths.attempt, paths.lineage):
        raise InvalidSpec(f"{paths.spec}: is for attempt {spec.attempt} of lineage {spec.lineage}")
    return spec


def _fail(reporter: Reporter, failure: Failure) -> int:
    if isinstance(failure, NoValidCheckpoint):
        reporter.progress.rejected = failure.rejected
    return _finish(reporter, failure.cause, failure.exit_code, str(failure))


def _finish(reporter: Reporter, cause: Cause, code: int, message: str) -> int:
    if cause is Cause.STOPPED:
        say(message)
    else:
        complain(message)
    reporter.finish(cause, message)
    return code


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
