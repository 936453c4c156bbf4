"""The line of an event says what the attempt begins with."""

from datetime import UTC, datetime, timedelta

import pytest

from runner.core.job.attempt import ProgramStart
from runner.core.job.describe import describe_event
from runner.core.job.events import HostFailed, Launched
from runner.core.job.model import Job
from runner.core.job.states import Queued

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job("1", Queued(NOW, "img"), attempts=2)


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (
            ProgramStart(0, "", directory="work/1.before-2"),
            ", from the submitted code; what was written before is in work/1.before-2",
        ),
        (ProgramStart(0, ""), ", in the files of the attempt before"),
        (ProgramStart(30, "out/ckpt_30.pt"), ", from out/ckpt_30.pt (step 30)"),
        (ProgramStart(3, "last.pt", known_as="version 3"), ", from last.pt (version 3)"),
        (
            ProgramStart(3, "best.pt", known_as="version 3", put_back=("last.pt",)),
            ", from best.pt (version 3); torn, so its newest whole version was put back: last.pt",
        ),
        (
            ProgramStart(3, "c-3", torn=("c-4",)),
            ", from c-3 (step 3); torn, so renamed to .NAME.torn: c-4",
        ),
    ],
)
def test_the_start_of_a_program_tells_its_files(start: ProgramStart, told: str) -> None:
    assert describe_event(Launched(NOW, resumed=start), JOB) == f"attempt 2 started{told}"


def test_a_fault_of_the_host_is_told_with_the_next_try() -> None:
    said = "not started, and not counted: no driver"
    assert describe_event(HostFailed(NOW, "no driver"), JOB) == said
    again = describe_event(HostFailed(NOW, "no driver", NOW + timedelta(seconds=30)), JOB)
    assert again == f"{said}; tried again at 00:00:30 UTC"
