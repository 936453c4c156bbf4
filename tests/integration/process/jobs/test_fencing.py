"""An attempt that was frozen while its successor trained the same lineage."""

import os
import signal

from jobs.contract import Cause, ExitCode
from tests.integration.process.jobs.gangs import training, weights
from tests.unit.jobs.conftest import JobDir


def test_a_frozen_attempt_that_thaws_publishes_nothing(job: JobDir) -> None:
    with training(job, 1) as frozen:
        frozen.wait_for("step 10/40")
        os.kill(frozen.rank(0), signal.SIGSTOP)
        with training(job, 1) as successor:
            assert successor.end() == ExitCode.FINISHED, successor.output
            assert "the other one can publish nothing more" in successor.output
        published, names = weights(job), job.names()
        os.kill(frozen.rank(0), signal.SIGCONT)
        assert frozen.end() == ExitCode.SUPERSEDED, frozen.output
    assert (weights(job), job.names()) == (published, names)
    assert job.result(1).cause is Cause.SUPERSEDED
