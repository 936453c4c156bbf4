from pathlib import Path, PurePosixPath

import pytest

from jobs.contract import RunPaths
from runner.agent.attempts.output import locate_output
from runner.base.errors import UsageError

PATHS = RunPaths(Path("/state/jobs/7"), 3, 2)


@pytest.mark.parametrize(
    ("written", "works", "place"),
    [
        ("out/model.pt", True, "work/2/out/model.pt"),
        ("", True, "work/2"),
        ("home/x", False, "homes/2/x"),
        ("home", False, "homes/2"),
        ("/code/a", True, "work/2/a"),
        ("/job/lineages/1", True, "lineages/1"),
        ("/job/home/x", False, "homes/2/x"),
    ],
)
def test_a_path_of_a_job_is_found_in_its_run_directory(written: str, place: str, *, works: bool) -> None:
    assert locate_output(PATHS, written, works=works) == PurePosixPath(place)


@pytest.mark.parametrize("written", ["../x", "/etc", "/job", "/job/secrets/token", "/code/x", ""])
def test_what_is_no_path_of_a_job_is_refused(written: str) -> None:
    with pytest.raises(UsageError):
        locate_output(PATHS, written, works=False)
