"""Files that a node reads at the start of an attempt."""

from pathlib import Path

import pytest

from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.records import SlurmRecord
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner

KEY = Key("fake", "7", 1)


def test_nobody_else_reads_the_variables_of_a_job_while_its_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody reaches the directory of these files, and knows its name and theirs."""
    found: dict[str, int] = {}
    replace = Path.replace

    def seen(draft: Path, target: Path) -> Path:
        found[target.name] = draft.stat().st_mode & 0o777
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", seen)
    executor = SlurmExecutor(SlurmExecutorSettings("fake", tmp_path / "books", SlurmCommands()))
    request = LaunchRequest(
        KEY, "tiny", Owner(1000, 1000, "ada"), "", ("true",), tmp_path,
        tmp_path / "attempts" / "1" / "log.txt", Limits(1.0, 2**20), {"PASSAGE": "x"},
    )  # fmt: skip
    booking = SlurmRecord(tmp_path / "books" / "runner-fake-7-1").create(request, 0.0)
    executor._prepare(request, booking)
    assert "export PASSAGE=x" in (booking.place / "program").read_text()
    assert found == {"booking.json": 0o600, "program": 0o400, "signals": 0o400}
