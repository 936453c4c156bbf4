"""``runner show --file``: the job file of a job, which makes the same job."""

import json
from pathlib import Path

import pytest

from runner.files.job.load import parse_job
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

FILES = (
    """
name: a
workload: {kind: program, command: [python, 'my train.py', --lr, '0.1'], code: .}
image: {requirements: [tqdm, "x>=1"]}
""",
    """
name: full
workload: {kind: causal_lm, data: stdlib, steps: 20}
profile: {extends: cpu, threads: 2}
resources: {gpus: 1, cpus: 1.5, memory: 3GiB, shm: 64MiB, time_limit: 2h30m}
devices: {kind: shared, memory: 20GiB, model: [H100]}
queue: {after: [a, {job: b, condition: any}], not_before: 2030-01-31T18:00:00+01:00, on_unmet: wait}
mounts: [{source: /srv/x, target: /data/x, read_only: false}]
environment: {A: "1", "B": "yes: 'no'"}
checkpoint: {every: 30s, keep: 5}
retry: {max_attempts: 3}
labels: {seed: "1"}
""",
)


@pytest.mark.parametrize("text", FILES)
def test_the_file_of_a_job_makes_the_same_job(api: FakeApi, invoke: Invoke, text: str) -> None:
    job = parse_job(text.encode(), Path("job.yaml"))
    api.add("a", revision={"job": json.loads(job.model_dump_json()), "path": "/home/ada/x/job.yaml"})
    result = invoke("show", "--file", "a")
    assert result.stdout.startswith("# The file of job 000001; paths are relative to /home/ada/x\n")
    assert parse_job(result.stdout.encode(), Path("job.yaml")) == job
    assert "null" not in result.stdout
    assert ("memory: 3GiB" in result.stdout) == ("3GiB" in text)


def test_the_file_of_somebody_elses_job_is_not_shown(api: FakeApi, invoke: Invoke) -> None:
    api.add("a", revision=None)
    result = invoke("show", "--file", "a")
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    assert invoke("show", "--file", "--json", "a").exit_code == 2
