"""Files that a node reads at the start of an attempt."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.records import Booking, SlurmRecord
from runner.adapters.slurm.states import SlurmEvidence
from runner.core.ports.executor import (
    BatchOptions,
    BatchRequest,
    Gone,
    Key,
    LaunchRefused,
    LaunchRequest,
    Limits,
    OptionsUnfit,
    Unknown,
)
from runner.core.ports.users import Owner

KEY = Key("fake", "7", 1)


def request_of(key: Key, place: Path) -> LaunchRequest:
    log = place / "attempts" / str(key.attempt) / "log.txt"
    owner, limits = Owner(1000, 1000, "ada"), Limits(1.0, 2**20)
    return LaunchRequest(key, "tiny", owner, "", ("true",), place, log, limits, {"PASSAGE": "x"})


def test_nobody_else_reads_the_variables_of_a_job_while_its_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody reaches the directory of these files, and knows its name and theirs."""
    found: dict[str, int] = {}
    put = Path.replace

    def seen(draft: Path, target: Path) -> Path:
        found[target.name] = draft.stat().st_mode & 0o777
        return put(draft, target)

    monkeypatch.setattr(Path, "replace", seen)
    executor = SlurmExecutor(SlurmExecutorSettings("fake", tmp_path / "books", SlurmCommands()))
    request = request_of(KEY, tmp_path)
    booking = SlurmRecord(tmp_path / "books" / "runner-fake-7-1").create(request, 0.0)
    executor._prepare(request, booking)
    assert "export PASSAGE=x" in (booking.place / "program").read_text()
    assert found == {"booking.json": 0o600, "program": 0o400, "signals": 0o400}


def test_an_attempt_whose_files_cannot_be_read_is_unknown_and_the_others_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = SlurmExecutor(SlurmExecutorSettings("fake", tmp_path / "books", SlurmCommands()))
    other = Key("fake", "8", 1)
    for key in (KEY, other):
        request = request_of(key, tmp_path / key.job_id)
        request.log.parent.mkdir(parents=True)
        executor._records.of(key).create(request, 0.0)
    (tmp_path / "8" / "attempts" / "1" / ".slurm-exit").write_text("0\n")
    read = SlurmRecord.evidence

    def torn(record: SlurmRecord, booking: Booking) -> SlurmEvidence:
        if booking.key == KEY:
            raise ValueError("year is out of range")
        return read(record, booking)

    monkeypatch.setattr(SlurmRecord, "evidence", torn)
    unknown, gone = executor.observe()
    assert unknown == Unknown(KEY, "the files of its attempt cannot be read: year is out of range")
    assert isinstance(gone, Gone)
    assert (gone.key, gone.exit_code) == (other, 0)


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        (BatchOptions(account="nobody"), OptionsUnfit),
        (BatchOptions(partition="gpu"), LaunchRefused),  # the account is that of the operator's settings
    ],
)
def test_a_name_of_the_job_file_that_slurm_refuses_is_no_fault_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: BatchOptions, kind: type[LaunchRefused]
) -> None:
    executor = SlurmExecutor(SlurmExecutorSettings("fake", tmp_path / "books", SlurmCommands()))
    request = request_of(KEY, tmp_path)

    def refuse(*_: object, **__: object) -> str:
        raise LaunchRefused("sbatch: Invalid account or account/partition combination specified")

    monkeypatch.setattr(SlurmCommands, "ask", refuse)
    with pytest.raises(LaunchRefused) as refused:
        executor._sbatch(replace(request, batch=BatchRequest(request.limits, options=named)))
    assert type(refused.value) is kind
