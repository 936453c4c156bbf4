"""The optimiser of a training that compiles nothing: the bits of torch's own, and no compiler in memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.contract import AttemptSpec, RunPaths
from tests.fakes.workloads.small_sets import small_plan

LOADED = """
import json, sys
from jobs.__main__ import main
code = main(json.loads(sys.argv[1]))
print(json.dumps([code, "torch" in sys.modules, "torch._dynamo" in sys.modules]))
"""


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_training_that_compiles_nothing_does_not_load_the_compiler(
    tmp_path: Path, *, deterministic: bool
) -> None:
    paths = RunPaths(tmp_path / "job", 1, 1)
    for leaf in (paths.attempt_dir, paths.lineage_dir):
        leaf.mkdir(parents=True)
    spec = AttemptSpec.model_validate(
        {
            "job_id": "j",
            "attempt": 1,
            "lineage": 1,
            "workload": {**small_plan("causal_lm", tmp_path / "data"), "steps": 4},
            "profile": {"micro_batch": 2, "deterministic": deterministic},
            "checkpoint": {"every_steps": 2},
        }
    )
    paths.spec.write_text(spec.model_dump_json())
    arguments = ["--root", str(paths.root), "--attempt", "1", "--lineage", "1"]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, True, False]
