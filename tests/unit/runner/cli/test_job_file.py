import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runner.cli.job_file import TEMPLATE
from runner.cli.main import cli
from runner.files.job.load import parse_job
from tests.fakes.daemon.api import FakeApi, Problem

GOOD = "workload: {kind: causal_lm, data: stdlib}\n"
BAD = "workload: {kind: causal_lm, data: stdlib}\nresources:\n  gpu: 1\n"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_SOCKET", str(tmp_path / "nobody.sock"))


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


def test_what_a_file_names_and_is_not_there_is_told_together_and_with_fields_that_contradict_each_other() -> (
    None
):
    Path("job.yaml").write_text(
        GOOD + "profile: none-such\nmounts: [{source: gone, target: /data/x}]\npolicy: none-such\n"
        "resources: {memory: 1GiB, shm: 2GiB}\n"
    )
    result = call("validate", "job.yaml")
    assert result.exit_code == 2
    assert [line.split("; ")[0] for line in result.stderr.splitlines()] == [
        'job.yaml:2:10: profile: there is no profile "none-such"',
        "job.yaml:3:19: mounts[0].source: gone: does not exist",
        'job.yaml:4:9: policy: there is no policy "none-such"',
        "job.yaml:5:32: resources.shm: 2GiB is larger than resources.memory, 1GiB, which includes it",
    ]


def test_mistakes_in_a_policys_own_file_are_told_once_the_job_file_is_right() -> None:
    Path("mine.yaml").write_text("policy: 1\nceilings: {attempts: 0}\n")
    Path("job.yaml").write_text(GOOD + "policy: mine.yaml\nmounts: [{source: gone, target: /data/x}]\n")
    assert call("validate", "job.yaml").stderr == "job.yaml:3:19: mounts[0].source: gone: does not exist\n"
    Path("gone").mkdir()
    assert call("validate", "job.yaml").stderr.startswith("mine.yaml:2:")


def test_a_policy_that_many_jobs_of_a_matrix_name_is_told_once_and_each_value_at_its_place() -> None:
    Path("job.yaml").write_text(
        GOOD + "matrix: {values: {policy: [strict, none-such, nor-this], seed: [1, 2]}}\n"
    )
    result = call("validate", "job.yaml")
    assert [line.split("; ")[0] for line in result.stderr.splitlines()] == [
        'job.yaml:2:36: policy: there is no policy "none-such"',
        'job.yaml:2:47: policy: there is no policy "nor-this"',
    ]


NO_FILE = "is not a regular file; pipes and devices are not read"


def test_a_pipe_in_place_of_a_job_file_is_refused_in_one_line_and_nobody_waits_for_its_other_end() -> None:
    os.mkfifo("job.yaml")
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stderr) == (2, f"job.yaml: {NO_FILE}\n")


@pytest.mark.parametrize("kind", ["socket", "device"])
def test_what_is_no_file_at_all_is_refused_in_the_same_words(kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        Path("device").symlink_to("/dev/zero")
        assert call("validate", kind).stderr == f"{kind}: {NO_FILE}\n"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "workload: {kind: causal_lm, data: pipe}\n",
            "workload.data: pipe: is neither a file nor a directory",
        ),
        (f"{GOOD}policy: ./pipe\n", f"pipe: {NO_FILE}"),
        ("workload: {kind: program, command: [a], code: pipe}\n", "workload.code: pipe: is not a directory"),
        (f"{GOOD}secrets: {{TOKEN: pipe}}\n", "secrets.TOKEN: pipe: is not a file"),
        (
            f"{GOOD}mounts: [{{source: pipe, target: /data/a}}]\n",
            "mounts[0].source: pipe: is neither a file nor a directory",
        ),
    ],
)
def test_a_pipe_that_a_job_file_names_is_refused_in_one_line(text: str, fact: str) -> None:
    Path("job.yaml").write_text(text)
    os.mkfifo("pipe")
    result = call("validate", "job.yaml")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert fact in result.stderr


@pytest.mark.parametrize("command", ["check", "show", "test policy.yaml"])
def test_a_pipe_in_place_of_a_policy_is_refused(command: str) -> None:
    os.mkfifo("policy.yaml")
    result = call("policy", *command.split(), "policy.yaml")
    assert (result.exit_code, result.stderr) == (2, f"policy.yaml: {NO_FILE}\n")


@pytest.mark.parametrize(
    "command",
    [
        "policy explain train --journal pipe",
        "policy simulate default --journal pipe",
        "simulate --trace pipe",
    ],
)
def test_a_pipe_in_place_of_a_journal_or_a_trace_is_refused(command: str) -> None:
    os.mkfifo("pipe")
    result = call(*command.split())
    assert (result.exit_code, result.stderr) == (2, f"pipe: {NO_FILE}\n")


def test_a_pipe_in_the_way_of_a_trace_that_is_saved_is_told() -> None:
    os.mkfifo("pipe")
    result = call("simulate", "--synthetic", "1", "--jobs", "1", "--save", "pipe")
    expected = "pipe: cannot be written: is not a regular file; choose another place\n"
    assert (result.exit_code, result.stderr) == (2, expected)


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
        {"file": "b.yaml", "ok": True, "name": "b", "jobs": 1, "warnings": [], "problems": []},
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
    assert parse_job(Path("job.yaml").read_bytes(), Path("job.yaml")).name == "job"


def test_init_leaves_an_existing_file_alone_unless_forced() -> None:
    Path("mine.yaml").write_text(GOOD)
    refused = call("init", "mine.yaml")
    assert (refused.exit_code, refused.stderr) == (2, "mine.yaml: exists already; --force overwrites it\n")
    assert Path("mine.yaml").read_text() == GOOD
    assert call("init", "mine.yaml", "--force").exit_code == 0
    assert Path("mine.yaml").read_text() != GOOD


def test_init_writes_to_standard_output() -> None:
    result = call("init", "-")
    assert (result.exit_code, result.stdout) == (0, TEMPLATE.read_text())
    assert result.stderr == "a job file, a sample that trains a small model: no script was found here\n"
    assert not list(Path().iterdir())


def test_init_quotes_what_is_to_be_typed() -> None:
    assert call("init", "a b.yaml").stderr == (
        "wrote a b.yaml, a sample that trains a small model: no script was found here;"
        " start it with: runner submit 'a b.yaml' --follow\n"
    )


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_init_says_that_a_directory_is_one(more: tuple[str, ...]) -> None:
    Path("my jobs").mkdir()
    refused = call("init", "my jobs", *more)
    said = "my jobs: is a directory; write into it with: runner init 'my jobs/job.yaml'\n"
    assert (refused.exit_code, refused.stderr) == (2, said)


def test_init_does_not_write_through_a_link() -> None:
    Path("job.yaml").symlink_to("elsewhere.yaml")
    assert call("init").exit_code == 2
    assert not Path("elsewhere.yaml").exists()


@pytest.mark.parametrize("reader", [False, True], ids=["without-a-reader", "with-a-reader"])
def test_a_pipe_is_not_written_over_even_where_that_is_forced(reader: bool) -> None:  # noqa: FBT001
    os.mkfifo("job.yaml")
    other_end = [os.open("job.yaml", os.O_RDONLY | os.O_NONBLOCK)] if reader else []
    result = call("init", "--force")
    for each in other_end:
        os.close(each)
    expected = "job.yaml: cannot be written: is not a regular file\n"
    assert (result.exit_code, result.stderr) == (2, expected)


def test_init_tells_why_it_cannot_write() -> None:
    result = call("init", "no/such/place.yaml")
    assert result.exit_code == 2
    assert result.stderr == "no/such/place.yaml: cannot be written: No such file or directory\n"


def test_a_job_file_may_come_from_standard_input_with_paths_from_here() -> None:
    Path("corpus").mkdir()
    text = "workload: {kind: causal_lm, data: corpus}\nresources:\n  gpu: 1\n"
    result = CliRunner().invoke(cli, ("validate", "-"), input=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == '-:3:3: resources.gpu: unknown field; did you mean "gpus"?\n'
    right = CliRunner().invoke(cli, ("validate", "-"), input=text.partition("resources")[0])
    assert (right.exit_code, right.stdout) == (0, "-: ok\n")


def test_an_empty_name_is_no_directory() -> None:
    words = "'': no file has an empty name; name a job file"
    for command in ("validate", "submit"):
        result = call(command, "")
        assert (result.exit_code, result.stderr) == (2, f"{words}\n")
    (said,) = call("validate", "--json", "").stdout.splitlines()
    assert json.loads(said)["ok"] is False


LATER = "users, jobs that it waits for, devices and data are looked at when it is submitted"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD, ""),
        (f"{GOOD}queue: {{after: [nobody]}}\n", f"job.yaml: {LATER}\n"),
        (f"{GOOD}resources: {{gpus: 1}}\ndevices: {{model: B200}}\n", f"job.yaml: {LATER}\n"),
        ("workload: {kind: causal_lm, data: .}\n", f"job.yaml: {LATER}\n"),
    ],
)
def test_what_only_the_daemon_knows_is_said_to_be_open(text: str, told: str) -> None:
    Path("job.yaml").write_text(text)
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "job.yaml: ok\n", told)


def test_where_a_daemon_answers_it_is_asked_what_submit_would_say(api: FakeApi) -> None:
    Path("job.yaml").write_text(GOOD)
    api.problem = Problem(422, "usage", 2, "job.yaml:1:11: image.name: is not offered here")
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "job.yaml:1:11: image.name: is not offered here\n"
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["dry_run"] is True
    api.problem = Problem(
        422, "usage", 2, "job.yaml:1:11: image.name: is not offered here", "job.yaml: too large"
    )
    (said,) = call("validate", "--json", "job.yaml").stdout.splitlines()
    assert json.loads(said)["problems"] == [
        {"line": 1, "column": 11, "field": "image.name", "fact": "is not offered here"},
        {"line": None, "column": None, "field": "", "fact": "too large"},
    ]
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "job.yaml: ok\n", "")
    assert not api.jobs


def test_a_refusal_has_its_own_exit_code_and_a_daemon_in_trouble_is_not_asked_again(api: FakeApi) -> None:
    Path("job.yaml").write_text(f"{GOOD}queue: {{after: [nobody]}}\n")
    api.problem = Problem(403, "refused", 3, "job.yaml: the quota is used up")
    assert call("validate", "job.yaml").exit_code == 3
    api.problem = Problem(503, "unavailable", 4, "the disk is full")
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stderr) == (0, f"job.yaml: {LATER}\n")
    asked = len(api.asked)
    assert call("validate", "--offline", "job.yaml").exit_code == 0
    assert len(api.asked) == asked


def test_a_retry_that_its_policy_does_not_allow_is_warned_about() -> None:
    limits = "retry: {no_progress: 9}\nresources: {time_limit: 45d}\n"
    Path("job.yaml").write_text(f"workload: {{kind: program, command: [train]}}\n{limits}")
    assert call("validate", "job.yaml").stderr == (
        "warning: job.yaml: retry.no_progress: has no effect, because the policy allows only 3\n"
        "warning: job.yaml: resources.time_limit: has no effect, because the policy allows only 30d\n"
    )


def test_a_pipe_between_words_of_a_command_is_warned_about() -> None:
    Path("job.yaml").write_text("workload: {kind: program, command: [train, '>', log]}\n")
    result = call("validate", "job.yaml")
    assert (result.exit_code, result.stdout) == (0, "job.yaml: ok\n")
    assert result.stderr.startswith("warning: job.yaml: workload.command[1]: '>' is passed to the program")
    assert json.loads(call("validate", "--json", "job.yaml").stdout)["warnings"]
