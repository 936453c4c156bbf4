import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

import gpu_job_runner as runner
from gpu_job_runner import function, submission
from gpu_job_runner.job import Connection
from gpu_job_runner.submission import Options, Spec, command_text, make_spec
from runner.cli import upload
from tests.fakes.daemon.api import AT, FakeApi, Problem, an_attempt, ended


def test_a_job_file_is_sent_as_it_is_with_what_replaces_it(api: FakeApi, job_file: Path) -> None:
    job = runner.submit(job_file, name="other", priority=7, after=["first", "second:any"])
    assert (job.id, job.name) == ("000001", "other")
    body = api.asked[-1][2]
    assert body is not None
    assert api.submitted == [b"name: train\n"]
    assert body["path"] == str(job_file)
    after = [{"job": "first", "condition": "ok"}, {"job": "second", "condition": "any"}]
    assert body["instead"] == {"priority": 7, "after": after}


def test_a_mapping_is_a_job_file_of_the_current_directory(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"name": "a 'b\"", "workload": {"kind": "program", "command": ["x", "ü: #"]}}
    _ = runner.submit(said)
    assert yaml.safe_load(api.submitted[0]) == said
    assert api.asked[-1][2] is not None
    assert Path(api.asked[-1][2]["path"]).parent == tmp_path


def test_a_command_makes_the_file_that_runner_run_makes(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").touch()
    first = runner.submit(["true"], requirements=False)
    _ = runner.submit(
        ("python", "train.py"),
        gpus=2,
        time="2h",
        mounts={"/data/x": "/srv/x"},
        after=[first],
        labels={"a": "1"},
    )
    assert yaml.safe_load(api.submitted[1]) == {
        "name": f"{tmp_path.name}-train",  # after its project
        "workload": {"kind": "program", "command": ["python", "train.py"], "code": "."},
        "resources": {"gpus": 2, "time_limit": "2h"},
        "image": {"requirements": "requirements.txt"},
        "mounts": [{"source": "/srv/x", "target": "/data/x"}],
        "labels": {"a": "1"},
        "queue": {"after": [{"job": "000001", "condition": "ok"}]},
    }


def test_the_errors_are_those_of_the_command_line(api: FakeApi, job_file: Path) -> None:
    lines = "j.yaml:1:1: a: unknown field", "j.yaml:2:1: b: unknown"
    for code, kind in ((2, runner.UsageError), (3, runner.Refused), (4, runner.Unavailable)):
        api.problem = Problem(422, "usage", code, *lines)
        with pytest.raises(kind) as told:
            _ = runner.submit(job_file)
        assert str(told.value) == "\n".join(lines)
    assert issubclass(runner.JobFailed, runner.RunnerError)


def test_an_error_of_what_is_no_file_has_no_line_and_the_name_of_its_option(api: FakeApi) -> None:
    lines = 'submit:7:11: resources.memory: "12Gb" means bits', "submit:8:3: resources.time_limit: must be"
    api.problem = Problem(422, "usage", 2, *lines)
    with pytest.raises(runner.UsageError) as told:
        _ = runner.submit(["true"], memory="12Gb", time="0m")
    assert str(told.value) == 'memory: "12Gb" means bits\ntime: must be'
    api.problem = Problem(422, "usage", 2, *lines)
    with pytest.raises(runner.UsageError) as told:
        _ = runner.submit({"resources": {"memory": "12Gb"}})
    assert str(told.value).splitlines()[0] == 'resources.memory: "12Gb" means bits'


def test_what_would_be_dropped_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("{}")
    with pytest.raises(runner.UsageError, match="gpus: is for commands"):
        make_spec(file, {"gpus": 1})
    with pytest.raises(runner.UsageError, match="gpu: no such option"):
        make_spec(["true"], {"gpu": 1})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(runner.UsageError, match="there is no command"):
        make_spec([], {})
    with pytest.raises(runner.UsageError, match="more than 1 MiB"):
        make_spec(["echo", "x" * 2**20], {})
    with pytest.raises(runner.UsageError, match="absent"):
        make_spec(tmp_path / "absent.yaml", {})


@pytest.mark.parametrize(
    ("name", "job"),
    [("_train", "train"), ("<lambda>", "lambda"), ("_1", "job-1"), ("x" * 64, "x" * 63), ("__", "job")],
)
def test_a_function_of_any_name_gives_its_job_one_that_is_taken(name: str, job: str) -> None:
    def called() -> None:
        return

    called.__name__ = name
    assert yaml.safe_load(function._spec(called, (), {}, {"code": None}).text)["name"] == job


def test_a_call_that_cannot_succeed_is_refused_before_it_is_a_job() -> None:
    async def later(x: int) -> int:
        return x

    def letters() -> Iterator[str]:
        yield "a"

    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: runner.run("train.py"), "run: 'train.py' is no function"),  # type: ignore[arg-type]
        (lambda: runner.run(letters), "letters: is a generator"),
        (lambda: runner.run(later, 1), r"later: is asynchronous.*asyncio.run\(later"),
        (lambda: runner.run(make_spec, 1, 2, 3), "make_spec: too many positional arguments"),
        (lambda: runner.run(len, x=1), "x: no such option; .* bound by functools.partial"),  # type: ignore[call-arg]
        (lambda: runner.map(len, {"lr": 0.1}), "lr: must be a list of values, not 0.1"),
        (lambda: runner.map(len, {"lr": "ab"}), "lr: must be a list of values, not 'ab'"),
        (lambda: runner.map(len, 3), "map: takes a list of values, or a grid of them, not 3"),  # type: ignore[arg-type]
        (lambda: runner.submit(["true"], environment=["A=1"]), "environment: must be a mapping"),  # type: ignore[arg-type]
    ]
    for call, told in cases:
        with pytest.raises(runner.UsageError, match=told):
            call()


ODD: tuple[object, ...] = (
    *(
        object(),
        7,
        0.5,
        float("nan"),
        True,
        None,
        b"x",
        {1},
        [],
        [object()],
        [None],
        {},
        {"a": object()},
        len,
    ),
    *(np.int64(3), np.float32(0.5), np.arange(2), Path("x")),
)


@pytest.mark.parametrize("name", sorted(Options.__annotations__))
def test_a_value_of_any_type_is_written_or_refused_in_a_line(name: str) -> None:
    """The daemon checks what is written; nothing fails on its way there."""
    for value in ODD:
        try:
            text = command_text(("true",), cast("Options", {name: value}))
        except runner.UsageError:
            continue
        yaml.safe_load(text)


def test_a_command_and_a_mapping_take_numbers_and_paths(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _ = runner.submit(
        ["train", "--lr", 0.1, Path("a/b"), cast("Any", np.int64(3))],
        cpus=cast("Any", np.float32(0.5)),
        code=None,
    )
    found = yaml.safe_load(api.submitted[0])
    assert found["workload"]["command"] == ["train", "--lr", "0.1", "a/b", "3"]
    assert found["resources"] == {"cpus": 0.5}
    _ = runner.submit({"name": "x", "matrix": {"values": {"seed": np.arange(2), "data": Path("x")}}})
    assert yaml.safe_load(api.submitted[1])["matrix"] == {"values": {"seed": [0, 1], "data": "x"}}
    odd: Any
    for odd, told in (
        (None, "not None"),
        (b"true", "not b'true'"),
        (["true", None], "a word of a command"),
        ({"name": object()}, "must be text, a number or a path"),
        ({(1, 2): 3}, "keys must be"),
        ("python train.py", r"a list of words: submit\(\['python', 'train.py'\]\)"),
    ):
        with pytest.raises(runner.UsageError, match=told):
            _ = runner.submit(odd)


def test_a_single_package_or_job_is_no_list_of_letters() -> None:
    text = command_text(("true",), {"packages": "einops", "after": "prepare", "code": None})
    assert b"einops" in text
    assert b"prepare" in text


@pytest.mark.parametrize("written", [None, "proj/requirements.txt"])
def test_absolute_code_and_requirements_of_a_command_can_be_sent_to_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOST", "gpu1")
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "requirements.txt").touch()
    options: Any = {"code": tmp_path / "proj"} | ({"requirements": tmp_path / written} if written else {})
    made = command_text(("true",), options)
    said = yaml.safe_load(made)
    assert (said["workload"]["code"], said["image"]["requirements"]) == ("proj", "proj/requirements.txt")
    monkeypatch.setattr(upload, "_send", lambda host, _tree: f"/sent/{host}")
    path = str(tmp_path / "submit")
    assert upload.send_files(path, made) == f"/sent/gpu1{path}"


def test_a_matrix_is_for_submit_all_alone(api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("matrix: {}\n")
    api.matrix = 3
    with pytest.raises(runner.UsageError, match="matrix: makes 3 jobs; use submit_all"):
        _ = runner.submit(file)
    assert not api.jobs
    api.matrix = 3
    assert len(runner.submit_all(file)) == 3


def test_a_sweep_is_for_sweep_alone(api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("# instead of a matrix\nsweep: {metric: loss}\n")
    api.matrix = 3
    with pytest.raises(runner.UsageError, match="sweep: makes 3 jobs; use sweep"):
        _ = runner.submit(file)
    api.matrix = 3
    swept = runner.sweep(file)
    api.answers["sweeps"] = {"best": None, "candidates": candidates("succeeded", "paused", "queued")}
    with pytest.raises(TimeoutError, match="1 of 3 candidates ended after 0 s"):
        swept.wait(0)
    api.answers["sweeps"] = {"best": None, "candidates": candidates("succeeded", "paused", "held")}
    assert swept.wait().best is None  # the paused one waits for the other, and that for a person
    api.answers["sweeps"] = {"best": "000002", "candidates": candidates("cancelled", "succeeded", "failed")}
    assert swept.wait().best is swept.jobs[1]
    api.jobs.clear()
    file.write_text("name: sweep\n")
    with pytest.raises(runner.UsageError, match="sweep: is missing"):
        runner.sweep(file)
    api.made = {"name": "nightly"}
    with pytest.raises(runner.UsageError, match="schedule: has no job yet"):
        runner.sweep(file)
    assert not api.jobs


def candidates(*states: str) -> list[dict[str, object]]:
    return [{"job": f"{number:06}", "state": state} for number, state in enumerate(states, start=1)]


def test_warnings_of_the_daemon_are_warnings(api: FakeApi, job_file: Path) -> None:
    api.warnings = ["data: 3 files"]
    with pytest.warns(UserWarning, match="data: 3 files") as told:
        _ = runner.submit(job_file)
    assert told[0].filename == __file__


def test_a_job_that_ends_badly_raises_with_its_reason(api: FakeApi) -> None:
    api.add("train", **ended("failed", why="exit code 1: KeyError"))
    job = runner.find("train")
    assert (job.state, job.done, job.wait()) == ("failed", True, "failed")
    with pytest.raises(runner.JobFailed, match="train: failed: exit code 1: KeyError") as told:
        job.result()
    assert told.value.job is job


def test_a_candidate_that_its_sweep_has_paused_is_not_done(api: FakeApi) -> None:
    api.add("rate-1", state="held", why="paused at step 100, until its sweep decides")
    assert not runner.find("rate-1").done


def test_a_wait_for_a_job_that_is_gone_raises_as_other_calls_do(api: FakeApi) -> None:
    api.add("train")
    job = runner.find("train")
    api.jobs.clear()
    with pytest.raises(runner.UsageError):
        job.wait()


def test_jobs_of_a_map_that_is_interrupted_are_cancelled(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = submission.send

    def interrupted(connection: Connection, spec: Spec) -> list[runner.Job[Any]]:
        if len(api.jobs) == 2:
            raise KeyboardInterrupt
        return send(connection, spec)

    monkeypatch.setattr(function, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _ = runner.map(abs, [1, 2, 3])
    assert [job["outcome"] for job in api.jobs.values()] == ["cancelled"] * 2


def test_a_wait_ends_in_time_with_what_the_job_does(api: FakeApi) -> None:
    api.add("train", state="queued", why="no device is free")
    with pytest.raises(TimeoutError, match="train: queued after 0 s: no device is free"):
        runner.find("train").wait(0)


def test_a_job_is_controlled_as_by_the_commands(api: FakeApi) -> None:
    api.add("train")
    job = runner.find("train")
    job.cancel()
    job.hold()
    job.release()
    job.restart("scratch")
    with pytest.raises(runner.UsageError, match="restart: begins from checkpoint, scratch or a step"):
        job.restart("best")
    asked = [(path, body) for method, path, body in api.asked if method == "POST"]
    assert [path.rpartition("/")[2] for path, _ in asked] == ["cancel", "hold", "release", "restart"]
    assert json.loads(json.dumps(asked[-1][1])) == {"from": "scratch"}


def test_the_log_is_read_whole_and_followed_over_attempts(api: FakeApi) -> None:
    job = api.add("train", **ended("succeeded"), attempts=[an_attempt(n, ended_at=AT) for n in (1, 2)])
    api.logs = {(job["id"], 1): b"eins\n", (job["id"], 2): "zwei ü\n".encode()}
    found = runner.find("train")
    assert found.logs(1) == "eins\n"
    assert "".join(found.follow()) == "eins\nzwei ü\n"


def test_who_follows_a_job_waits_for_its_next_attempt_and_does_not_ask_all_the_time(api: FakeApi) -> None:
    one = an_attempt(1, ended_at=AT)
    job = api.add("train", attempts=[one], state="queued")
    api.logs[job["id"], 1] = b"one"
    api.happen("wait", {"state": "running"}, {"state": "queued"}, lambda: None)
    api.happen("log", *[lambda: None] * 3, {**ended(), "attempts": [one]})
    assert "".join(runner.find("train").follow()) == "one"
    asked = [path.partition("?")[0].rpartition("/")[2] for _, path, _ in api.asked]
    assert asked[-5:] == ["log", "wait", "log", "wait", "log"]


def test_every_name_that_is_promised_can_be_had() -> None:
    assert {name: getattr(runner, name) for name in runner.__all__}.keys() <= {*dir(runner)}
    with pytest.raises(AttributeError, match="no attribute 'sumbit'"):
        _ = runner.sumbit


def test_the_events_of_a_job_are_all_that_it_has(api: FakeApi) -> None:
    job = runner.submit(["true"], requirements=False)
    told = {"job": job.id, "name": job.name, "at": AT, "kind": "noted", "text": "x"}
    api.events = [{**told, "seq": seq} for seq in range(1, 8)]  # the daemon gives two at a time
    assert [event["seq"] for event in job.events()] == [1, 2, 3, 4, 5, 6, 7]
