"""The script that keeps an attempt on a node, at moments that pass."""

import subprocess
from pathlib import Path

import pytest

import runner.adapters.slurm

BATCH = Path(runner.adapters.slurm.__file__).with_name("batch.sh")
CLAIM = "set -C # never overwrite a file\n"


@pytest.mark.parametrize(
    ("signals", "status"),
    [(("USR1",), 3), (("USR1", "TERM"), 128 + 15), (("TERM", "USR1", "WINCH"), 128 + 15)],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_before_the_program_has_begun_the_first_signal_that_ends_it_counts(
    tmp_path: Path, signals: tuple[str, ...], status: int
) -> None:
    now = "".join(f"kill -{each} $$\n" for each in signals)
    (tmp_path / "batch.sh").write_text(BATCH.read_text().replace(CLAIM, now + CLAIM))
    (tmp_path / "program").write_text("exit 3\n")
    command = ["/bin/sh", str(tmp_path / "batch.sh"), str(tmp_path), str(tmp_path)]
    environ = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n", "PATH": "/usr/bin:/bin"}
    assert subprocess.run(command, env=environ, check=False).returncode == status
    assert (tmp_path / ".slurm-exit").read_text() == f"{status}\n"
