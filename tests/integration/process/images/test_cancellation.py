from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.errors import BuildCancelled, BuildFailed
from images.log import BuildLog


def test_a_program_is_killed_when_nobody_waits_any_more(tmp_path: Path) -> None:
    token, path = CancellationToken(), tmp_path / "log.txt"
    with BuildLog(path, lambda _: token.cancel()) as log, pytest.raises(BuildCancelled):
        log.run(["sh", "-c", "echo $$; exec sleep 600"], token=token)
    assert not Path("/proc", path.read_text().strip()).exists()


def test_a_program_that_is_told_of_no_interest_runs_to_its_end(tmp_path: Path) -> None:
    token = CancellationToken()
    token.cancel()
    with BuildLog(tmp_path / "log.txt", token=token) as log:
        with pytest.raises(BuildFailed, match="exit code 3"):
            log.run(["sh", "-c", "exit 3"])
        log.run(["true"])
