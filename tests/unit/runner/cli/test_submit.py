import json
import os
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.cli import follow
from runner.cli.main import cli
from runner.cli.submit import show_answer
from runner.client.client import Client
from tests.fakes.daemon.api import FakeApi, Problem, Vanish, an_attempt, ended
from tests.unit.runner.cli.conftest import Invoke


def vanish() -> None:
    raise Vanish


def test_a_submission_prints_id_and_name_and_warnings_apart(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.warnings = ["data: 3 files"]
    result = invoke("submit", str(job_file))
    assert (result.exit_code, result.stdout) == (0, "000001\ttrain\n")
    assert result.stderr == "warning: data: 3 files\n"
    assert api.submitted == [b"name: train\n"]
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["path"] == str(job_file)


@pytest.mark.usefixtures("api")
def test_a_submission_as_json_is_one_object_on_one_line(invoke: Invoke, job_file: Path) -> None:
    result = invoke("submit", "--json", "--name", "other", str(job_file))
    assert json.loads(result.stdout)["job"]["name"] == "other"
    assert result.stdout.count("\n") == 1


def test_hostile_paths_arrive_as_they_are(api: FakeApi, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "a b'\"\n; echo $HOME.yaml"
    path.write_bytes(b"\xff\xfe")
    assert invoke("submit", str(path)).exit_code == 0
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["path"] == str(path)
    assert api.submitted == [b"\xff\xfe"]


def test_every_line_of_a_bad_file_is_printed_with_the_daemons_exit_code(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    api.problem = Problem(422, "usage", 2, "j.yaml:1:1: a: unknown field", "j.yaml:2:1: b: \x1b unknown")
    result = invoke("submit", str(job_file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "j.yaml:1:1: a: unknown field\nj.yaml:2:1: b: \\x1b unknown\n"


@pytest.mark.parametrize("command", ["submit", "apply"])
def test_a_pipe_is_refused_and_nothing_is_sent(
    command: str, api: FakeApi, invoke: Invoke, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = invoke(command, str(tmp_path / "pipe"))
    assert (result.exit_code, api.submitted) == (2, [])
    assert result.stderr == f"{tmp_path}/pipe: is not a regular file; pipes and devices are not read\n"


@pytest.mark.usefixtures("api")
def test_one_bad_file_does_not_keep_the_others_back(invoke: Invoke, job_file: Path) -> None:
    result = invoke("submit", "/no/such.yaml", str(job_file))
    assert (result.exit_code, result.stdout) == (2, "000001\ttrain\n")
    assert "/no/such.yaml: no such file" in result.stderr
    assert result.stderr.endswith("\n1 of 2 files submitted; what is wrong with the others is said above\n")


@pytest.mark.usefixtures("api")
def test_a_dry_run_of_bad_files_counts_what_would_be_submitted(invoke: Invoke) -> None:
    said = "0 of 2 files would be submitted; what is wrong with the others is said above"
    assert invoke("submit", "--dry-run", "/no/a.yaml", "/no/b.yaml").stderr.splitlines()[2:] == [said]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("files", [["good"], ["good", "good"], ["/no/such.yaml"]])
def test_nothing_is_counted_where_all_files_are_good_or_there_is_but_one(
    invoke: Invoke, job_file: Path, files: list[str]
) -> None:
    result = invoke("submit", *(str(job_file) if file == "good" else file for file in files))
    assert " submitted" not in result.stderr


def test_a_refusal_exits_3(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.problem = Problem(403, "refused", 3, "mount /etc: not allowed here")
    assert invoke("submit", str(job_file)).exit_code == 3


@pytest.mark.parametrize("name", ["missing.yaml", "directory"])
def test_a_file_that_cannot_be_read_is_a_usage_error_and_starts_no_daemon(
    tmp_path: Path, invoke: Invoke, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/runner.sock")
    (tmp_path / "directory").mkdir()
    result = invoke("submit", str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_file_of_100_mb_is_refused_before_it_is_read(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024**2)
    result = invoke("submit", str(path))
    assert (result.exit_code, "larger than 1 MiB" in result.stderr) == (2, True)


def test_a_path_that_is_not_utf8_is_refused_in_one_harmless_line(tmp_path: Path, invoke: Invoke) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.yaml"
    Path(os.fsdecode(path)).touch()
    result = invoke("submit", os.fsdecode(path))
    assert (result.exit_code, "the path is not UTF-8; rename it" in result.stderr) == (2, True)


def test_follow_and_name_go_with_one_file(invoke: Invoke) -> None:
    assert invoke("submit", "-f", "a", "b").exit_code == 2
    assert "--name goes with one FILE only" in invoke("submit", "--name", "x", "a", "b").stderr


def test_no_daemon_exits_4(invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/runner.sock")
    result = invoke("submit", str(job_file))
    assert result.exit_code == 4
    assert "/nowhere/runner.sock: no daemon answers" in result.stderr


def test_a_dry_run_is_a_summary_and_submits_nothing(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    result = invoke("submit", "--dry-run", "--wait", str(job_file))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "name        train",
        "workload    python train.py --name 'a b'",
        "code        snapshot 0123456789ab",
        "image       auto with requirements",
        "resources   2 x cuda, 1.5 CPU, 4 GiB; time limit: 2h",
        "network     outbound",
        "mount       data at /data/x, read-only",
        "checkpoints out/c-*",
        "queue       class normal, priority 50",
        "policy      default, at most 3 attempts",
        "all of it   --json",
    ]
    assert api.jobs == {}
    assert json.loads(invoke("submit", "--dry-run", "--json", str(job_file)).stdout)["spec"] == {"attempt": 1}


def test_a_dry_run_of_several_nodes_says_what_each_has(capsys: pytest.CaptureFixture[str]) -> None:
    job = {"resources": {"nodes": 4, "gpus": 8, "cpus": 16.0, "memory": 64 * 1024**3}}
    answer = {"job": {"job": job, "accelerator": "cuda"}, "spec": {}, "engine": {}}
    show_answer(answer, dry_run=True, as_json=False)
    assert "4 nodes, each with 8 x cuda, 16 CPU, 64 GiB; time limit: none" in capsys.readouterr().out


def test_a_dry_run_marks_the_devices_as_those_of_now(capsys: pytest.CaptureFixture[str]) -> None:
    said = {
        "note": "those that the job would get now; the start decides",
        "devices": [{"uuid": "GPU-1b", "name": "GPU-3", "model": "NVIDIA H100"}],
        "waits_for": None,
        "problem": "not in the arguments: no CDI",
    }
    show_answer({"job": {}, "spec": {}, "engine": {}, "devices": said}, dry_run=True, as_json=False)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "devices: those that the job would get now; the start decides",
        "  GPU-3 NVIDIA H100 GPU-1b",
        "  not in the arguments: no CDI",
    ]


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 10), ("cancelled", 11)])
def test_waiting_exits_with_the_outcome(
    api: FakeApi, invoke: Invoke, job_file: Path, outcome: str, code: int
) -> None:
    api.turns["wait"].extend([lambda: None, lambda: api.jobs["000001"].update(ended(outcome))])
    result = invoke("submit", "--wait", str(job_file))
    assert result.exit_code == code
    assert result.stdout == f"000001\ttrain\ntrain: {outcome}: completed\n"


def test_waiting_for_a_job_that_is_held_exits_12(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.turns["wait"].append(
        lambda: api.jobs["000001"].update({"state": "held", "why": "no valid checkpoint"})
    )
    result = invoke("submit", "--wait", "--json", str(job_file))
    assert result.exit_code == 12
    assert json.loads(result.stdout.splitlines()[1])["why"] == "no valid checkpoint"


def test_who_has_submitted_a_sweep_and_waits_gets_its_success(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    def end() -> None:
        first, *others = api.jobs.values()
        first.update(ended(), revision={"sweep": {"id": "000001"}})
        for job in others:
            job.update(ended("cancelled", "cancelled by its sweep"), revision={"sweep": {"id": "000001"}})

    three(api)
    api.turns["wait"].append(end)
    assert invoke("submit", "--wait", str(job_file)).exit_code == 0


def three(api: FakeApi) -> None:
    """Let the next submission be of a matrix of three."""
    api.turns["submit"].append(lambda: setattr(api, "matrix", 3))


def test_a_matrix_prints_every_job_and_a_dry_run_how_many(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    three(api)
    result = invoke("submit", str(job_file))
    assert result.stdout == "000001\ttrain-1\n000002\ttrain-2\n000003\ttrain-3\n"
    three(api)
    planned = invoke("submit", "--dry-run", str(job_file)).stdout
    assert 'jobs: 3, of which this is the first\n  train-1: {"seed": 1}\n' in planned


def test_who_wants_to_follow_a_matrix_waits_for_all_of_it(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    def end() -> None:
        for job in api.jobs.values():
            job.update(ended())

    three(api)
    api.turns["wait"].append(end)
    result = invoke("submit", "--follow", str(job_file))
    assert result.stderr == "--follow goes with one job; waits for all 3 instead\n"
    assert result.stdout.splitlines()[3:] == [f"train-{n}: succeeded: completed" for n in (1, 2, 3)]


def test_one_interrupt_ends_the_wait_for_all_jobs(
    api: FakeApi, invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def interrupted(_client: Client, ref: str, *_: object) -> None:
        waited.append(ref)
        raise KeyboardInterrupt

    three(api)
    monkeypatch.setattr(Client, "wait", interrupted)
    assert (invoke("submit", "--wait", str(job_file)).exit_code, waited) == (130, ["000001"])


def test_options_beside_the_file_are_handed_on(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    args = ("--class", "urgent", "--after", "7", "--after", "prepare:any", "-p", "9")
    assert invoke("submit", *args, "--not-before", "2030-01-31T18:00:00Z", str(job_file)).exit_code == 0
    assert api.asked[-1][2] is not None
    assert api.asked[-1][2]["instead"] == {
        "priority_class": "urgent",
        "after": [{"job": "7", "condition": "ok"}, {"job": "prepare", "condition": "any"}],
        "not_before": "2030-01-31T18:00:00Z",
        "priority": 9,
    }
    assert invoke("submit", str(job_file)).exit_code == 0
    assert "instead" not in api.asked[-1][2]


@pytest.mark.parametrize(
    "option", [("--after", "7:done"), ("--after", "a b"), ("--after", ":ok"), ("-p", "101")]
)
def test_options_that_mean_nothing_are_refused_without_a_question(
    api: FakeApi, invoke: Invoke, job_file: Path, option: tuple[str, str]
) -> None:
    assert invoke("submit", *option, str(job_file)).exit_code == 2
    assert api.asked == []


# --- --follow


def life(api: FakeApi) -> None:
    """Let the first job go through a build, an attempt that is killed, and one that completes."""

    def change(**facts: object) -> None:
        api.jobs["000001"].update(facts)

    def build(text: bytes) -> None:
        api.builds["000001"] = api.builds.get("000001", b"") + text

    killed = an_attempt(1, ended_at="2026-03-01T12:01:00Z", exit_code=137, cause="killed", verdict="resuming")
    report = {"phase": "train", "time": 2000.0, "step": 60, "total_steps": 100}
    api.turns["wait"].extend(
        [
            lambda: change(state="preparing", progress=None, attempt=0, attempts=[]),
            lambda: build("Step 1/2 : FROM bäse\nStep 2".encode()),
            vanish,
            lambda: build(b"/2 : RUN pip\n" + b"x" * 100 + b"\n"),
            lambda: change(state="queued", why="waits for memory"),
            lambda: change(state="running", why="", attempt=1, attempts=[an_attempt(1)], progress=report),
            vanish,
            lambda: change(progress={**report, "time": 2001.0, "step": 70}),
            lambda: change(progress={**report, "time": 2010.0, "step": 80}),
            lambda: change(state="queued", why="killed: resuming", attempts=[killed], progress=None),
            lambda: change(
                state="running", why="", attempt=2, attempts=[killed, an_attempt(2, resumed_from=60)]
            ),
            lambda: change(**ended(), result={"weights_sha256": "ef" * 32}),
        ]
    )


def test_following_tells_the_whole_story_once_although_the_daemon_is_killed_twice(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    life(api)
    result = invoke("submit", "--follow", str(job_file))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "000001\ttrain",
        "train: preparing",
        "build: Step 1/2 : FROM bäse",
        "build: Step 2/2 : RUN pip",
        f"build: {'x' * 100}",
        "train: queued: waits for memory",
        "train: running (attempt 1 on cpu)",
        "step 60/100",
        "step 80/100  eta 10s",
        "attempt 1 ended (exit 137): killed; resuming",
        "train: queued: killed: resuming",
        "train: running (attempt 2 on cpu)",
        f"train: succeeded after 2 attempts: completed; weights sha256 {'ef' * 32}",
    ]


def test_who_follows_a_program_that_does_not_say_how_far_it_is_hears_once_where_its_output_is(
    api: FakeApi, invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "QUIET_S", 0.0)
    begun = {"state": "running", "why": "", "attempt": 1, "attempts": [an_attempt(1)], "progress": None}
    done = {**ended(), "attempts": [an_attempt(1, ended_at="x")]}

    def become(facts: dict[str, object]) -> None:
        api.jobs["000001"].update(facts)

    api.turns["wait"].extend(partial(become, facts) for facts in (begun, begun, begun, done))
    result = invoke("submit", "--follow", str(job_file))
    assert result.stdout.splitlines()[1:4] == [
        "train: running (attempt 1 on cpu)",
        "train: has not said how far it is; runner logs -f 000001 shows what it prints",
        "train: succeeded: completed",
    ]


def test_who_follows_hears_once_what_keeps_a_job_from_starting(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    begins = {"state": "starting", "why": "", "attempt": 1, "attempts": [an_attempt(1)], "progress": None}
    kept = {**begins, "why": "/s/jobs/1: No space left on device; make room there"}
    again = {**kept, "why": f"{kept['why']} (2 tries in 3s)"}

    def become(facts: dict[str, object]) -> None:
        api.jobs["000001"].update(facts)

    api.turns["wait"].extend(partial(become, facts) for facts in (begins, kept, again, again, ended()))
    told = invoke("submit", "--follow", str(job_file)).stdout
    assert (
        told.count("train: starting (attempt 1 on cpu): /s/jobs/1: No space left on device; make room") == 1
    )


def test_following_as_json_prints_the_job_whenever_it_changed(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    life(api)
    result = invoke("submit", "--follow", "--json", str(job_file))
    _, *jobs = [json.loads(line) for line in result.stdout.splitlines()]
    assert [job["state"] for job in jobs][-3:] == ["queued", "running", "finished"]
    assert all(one != other for one, other in pairwise(jobs))


@pytest.mark.parametrize("how", ["--follow", "--wait"])
def test_an_interrupt_leaves_the_job_alone_and_says_so(
    api: FakeApi, invoke: Invoke, job_file: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    result = invoke("submit", how, str(job_file))
    assert result.exit_code == 130
    assert "train goes on: runner logs -f train follows it, runner cancel train stops it" in result.stderr
    assert api.jobs["000001"]["state"] == "running"


def test_a_missing_build_log_is_no_story(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    def not_found() -> None:
        raise Problem(404, "not_found", 2, "nothing was built")

    api.turns["log"].append(not_found)
    api.turns["wait"].append(lambda: api.jobs["000001"].update(ended()))
    result = invoke("submit", "--follow", str(job_file))
    assert (result.exit_code, result.stdout) == (0, "000001\ttrain\ntrain: succeeded: completed\n")


def test_a_job_file_from_standard_input_is_sent_as_one_of_this_directory(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ("submit", "-"), input="name: train\n")
    assert (result.exit_code, api.submitted) == (0, [b"name: train\n"])
    (body,) = [body for method, _, body in api.asked if method == "POST"]
    assert body is not None
    assert (body["path"], body["shown"]) == (str(tmp_path / "-"), "-")


def test_too_much_on_standard_input_is_no_job_file() -> None:
    result = CliRunner().invoke(cli, ("submit", "-"), input="#" * (1024**2 + 1))
    assert (result.exit_code, result.stderr) == (2, "-: larger than 1 MiB, so not a job file\n")


def test_a_long_name_that_is_none_is_cut_in_its_message(invoke: Invoke) -> None:
    result = invoke("show", "x" * 100_000)
    assert result.exit_code == 2
    assert f"'{'x' * 59}…' is neither an id nor a name of a job" in result.stderr
    assert len(result.stderr) < 200


@pytest.fixture
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("job.sh", "#!/bin/bash\n#SBATCH -t 1\npython x.py\n", "bash job.sh"),
        ("my train.py", "print(1)\n", "python 'my train.py'"),
        ("job", "#!/bin/sh\ntrue\n", "bash job"),
    ],
)
@pytest.mark.usefixtures("_there")
def test_a_script_as_sbatch_takes_it_is_told_the_line_that_starts_it(
    invoke: Invoke, tmp_path: Path, name: str, text: str, line: str
) -> None:
    (tmp_path / name).write_text(text)
    options = "; its #SBATCH lines are options of runner run" if "SBATCH" in text else ""
    result = invoke("submit", name)
    said = f"{name}: is a script and not a job file; runner run -- {line} starts it as a job{options}\n"
    assert (result.exit_code, result.stderr) == (2, said)
