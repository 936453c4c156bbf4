"""An attempt that was frozen while its successor trained the same lineage."""

import os
import signal

from jobs.contract import Cause, ExitCode
from tests.integration.process.jobs.gangs import Fate, training, weights
from tests.unit.jobs.conftest import JobDir


def test_a_frozen_attempt_that_thaws_publishes_nothing(job: JobDir) -> None:
    with training(job, 1, fate=Fate(11, signal.SIGSTOP)) as frozen:
        pid = frozen.wait_until_stopped(0)
        with training(job, 1) as successor:
            assert successor.end() == ExitCode.FINISHED, successor.output
            assert "the other one can publish nothing more" in successor.output
        published, names = weights(job), job.names()
        os.kill(pid, signal.SIGCONT)
        assert frozen.end() == ExitCode.SUPERSEDED, frozen.output
    assert (weights(job), job.names()) == (published, names)
    assert job.result(1).cause is Cause.SUPERSEDED
