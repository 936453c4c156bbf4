"""The script of a training on Slurm."""

import subprocess
from pathlib import Path

import pytest

from bench.rivals.slurm_sharing import write_script
from jobs.contract import AttemptSpec, ExitCode
from jobs.contract.plans.causal_lm import CausalLm


@pytest.mark.parametrize("code", [75, 0, 97])
def test_a_training_that_has_saved_is_queued_again_and_one_that_has_ended_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The program is one that leaves with a code at once; the commands of Slurm are made up."""
    is_requeued = code == ExitCode.STOPPED
    programs = tmp_path / "bin"
    programs.mkdir()
    asked = tmp_path / "asked"
    for name, text in {
        "scontrol": f'echo "$@" >> {asked}',
        "srun": f"exit {code}",
        "sleep": f"exit {code}",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    plan = CausalLm(data="stdlib", steps=2)
    spec = AttemptSpec(job_id="1", attempt=1, lineage=1, workload=plan).model_dump(mode="json")
    place = tmp_path / "training"
    script = write_script(place, spec, f"{programs / 'srun'} ")
    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    assert subprocess.run(["sh", str(script)], check=False).returncode == code
    assert asked.exists() == is_requeued
    assert (place / "ended").exists() != is_requeued
    assert not is_requeued or asked.read_text() == "requeue 4242\n"
    assert (place / "starts").read_text() == "start\n"
