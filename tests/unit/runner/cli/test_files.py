import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runner.cli.main import cli
from runner.spec import jobfile

GOOD = "workload: {kind: causal_lm, data: stdlib}\n"
BAD = "workload: {kind: causal_lm, data: stdlib}\nresources:\n  gpu: 1\n"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_good_file_is_ok() -> None:
    Path("job.yaml").write_text(GOOD)
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "job.yaml: ok\n", "")


def test_every_problem_of_every_file_is_told_and_the_exit_code_is_2() -> None:
    Path("a.yaml").write_text(BAD)
    Path("b.yaml").write_text(GOOD)
    result = call("validate", "a.yaml", "b.yaml", "c.yaml")
    assert result.exit_code == 2
    assert result.stdout == "b.yaml: ok\n"
    assert result.stderr.splitlines() == [
        'a.yaml:3:3: resources.gpu: unknown field; did you mean "gpus"?',
        'c.yaml: no such file; "runner init" writes one to start from',
    ]


def test_paths_are_relative_to_the_job_file_not_to_the_shell() -> None:
    Path("below/corpus").mkdir(parents=True)
    Path("below/job.yaml").write_text("workload: {kind: causal_lm, data: corpus}\n")
    assert call("validate", "below/job.yaml").exit_code == 0


def test_a_missing_path_is_told_with_its_place() -> None:
    Path("job.yaml").write_text("workload: {kind: causal_lm, data: corpus}\n")
    assert call("validate", "job.yaml").stderr == "job.yaml:1:35: workload.data: corpus: does not exist\n"


def test_json_is_one_object_for_each_file() -> None:
    Path("a.yaml").write_text(BAD)
    Path("b.yaml").write_text(GOOD)
    result = call("validate", "--json", "a.yaml", "b.yaml", "c.yaml")
    assert result.exit_code == 2
    problem = {
        "line": 3,
        "column": 3,
        "field": "resources.gpu",
        "fact": 'unknown field; did you mean "gpus"?',
    }
    fact = 'no such file; "runner init" writes one to start from'
    missing = {"line": None, "column": None, "field": "", "fact": fact}
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"file": "a.yaml", "ok": False, "problems": [problem]},
        {"file": "b.yaml", "ok": True, "name": "b", "jobs": 1, "problems": []},
        {"file": "c.yaml", "ok": False, "problems": [missing]},
    ]


def test_the_schema_is_json() -> None:
    result = call("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["title"] == "Job file"


def test_init_writes_a_job_file_that_is_right() -> None:
    result = call("init")
    assert result.exit_code == 0
    assert "runner submit job.yaml --follow" in result.stderr
    assert jobfile.read(Path("job.yaml")).name == "job"


def test_init_leaves_an_existing_file_alone_unless_forced() -> None:
    Path("mine.yaml").write_text(GOOD)
    refused = call("init", "mine.yaml")
    assert (refused.exit_code, refused.stderr) == (2, "mine.yaml: exists already; --force overwrites it\n")
    assert Path("mine.yaml").read_text() == GOOD
    assert call("init", "mine.yaml", "--force").exit_code == 0
    assert Path("mine.yaml").read_text() != GOOD


def test_init_does_not_write_through_a_link() -> None:
    Path("job.yaml").symlink_to("elsewhere.yaml")
    assert call("init").exit_code == 2
    assert not Path("elsewhere.yaml").exists()


def test_init_tells_why_it_cannot_write() -> None:
    result = call("init", "no/such/place.yaml")
    assert result.exit_code == 2
    assert result.stderr == "no/such/place.yaml: cannot be written: No such file or directory\n"
