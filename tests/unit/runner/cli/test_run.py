import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.cli import run, run_follow
from runner.cli.run_file import CommandLine
from runner.cli.run_save import relocate
from runner.cli.upload import send_files
from tests.fakes.daemon.api import FakeApi, Problem, an_attempt, ended
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "a b\n; echo"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def become(api: FakeApi, *lives: dict[str, Any]) -> None:
    """Let the first job change before each of the next answers about it."""

    def change(facts: dict[str, Any]) -> None:
        next(iter(api.jobs.values())).update(facts)

    api.turns["wait"].extend(partial(change, facts) for facts in lives)


def test_the_output_of_the_job_is_all_of_stdout(api: FakeApi, invoke: Invoke, here: Path) -> None:
    killed = an_attempt(1, ended_at="x", exit_code=137, cause="killed", verdict="resuming")
    api.logs = {("000001", 1): b"step 1\nst\xe9\x1b[1m", ("000001", 2): b"step 2\n"}
    become(
        api,
        {"state": "preparing", "attempts": []},
        {"state": "queued", "why": "waits for memory: 3 GiB", "attempts": []},
        {"state": "queued", "why": "waits for memory: 2 GiB", "attempts": []},
        {"state": "running", "why": ""},
        {"state": "queued", "why": "backoff", "attempts": [killed]},
        {"state": "running", "why": "", "attempts": [killed, an_attempt(2)], "attempt": 2},
        {**ended(), "attempts": [killed, an_attempt(2, ended_at="x")]},
    )
    result = invoke("run", "python", "train.py")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"step 1\nst\xe9\x1b[1mstep 2\n"
    assert result.stderr.splitlines() == [
        "runner run: submitted as 000001",
        "runner run: queued: waits for memory: 3 GiB",
        "runner run: attempt 1 ended (exit 137): killed; resuming",
        "runner run: queued: backoff",
        "runner run: succeeded after 2 attempts, the last without a known checkpoint: completed",
    ]
    assert api.asked[0][2] is not None
    assert (api.asked[0][2]["path"], api.asked[0][2]["shown"]) == (f"{here}/runner run", "runner run")


def test_an_attempt_that_the_host_could_not_launch_is_waited_for_anew(api: FakeApi, invoke: Invoke) -> None:
    begun = {"state": "starting", "why": "", "attempts": [an_attempt(1)]}
    taken_back = {"state": "queued", "why": "backoff", "attempts": []}
    api.logs = {("000001", 1): b"ran\n"}
    become(api, begun, taken_back, taken_back, begun, {**ended(), "attempts": [an_attempt(1, ended_at="x")]})
    result = invoke("run", "true")
    assert (result.exit_code, result.stdout) == (0, "ran\n"), result.stderr


def test_what_keeps_a_job_from_starting_is_told_once(api: FakeApi, invoke: Invoke) -> None:
    kept = {"state": "starting", "why": "/s/jobs/1: No space left on device; make room there"}
    become(
        api,
        {"state": "starting", "why": ""},
        kept,
        {**kept, "why": kept["why"] + " (2 tries in 3s)"},
        {**kept, "why": kept["why"] + " (3 tries in 6s)"},
        ended(),
    )
    told = [line for line in invoke("run", "true").stderr.splitlines() if "No space left" in line]
    assert len(told) == 1
    assert "/s/jobs/1: No space left on device; make room there" in told[0]


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 10), ("cancelled", 11)])
def test_the_exit_code_is_the_outcome(api: FakeApi, invoke: Invoke, outcome: str, code: int) -> None:
    become(api, ended(outcome))
    assert invoke("run", "--", "true").exit_code == code


def test_the_output_of_a_long_job_is_waited_for(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_follow, "SHORT_S", 0.0)
    become(api, {"state": "running"}, {"state": "running"}, ended())
    api.logs = {("000001", 1): b"x\n"}
    assert invoke("run", "true").stdout == "x\n"
    assert any("wait=0.5" in path for _, path, _ in api.asked if "/log" in path)


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, " 7%|#\n"), (False, " 7%|#")])
def test_no_message_stands_in_an_incomplete_line_on_a_terminal(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, shown: str
) -> None:
    monkeypatch.setattr("runner.cli.job_output.on_terminal", lambda: is_terminal)
    become(api, {"state": "running"}, {**ended("failed"), "attempts": [an_attempt(1, ended_at="x")]})
    api.logs = {("000001", 1): b" 7%|#"}
    assert invoke("run", "true").stdout == shown


def test_options_become_fields_and_stand_before_the_command(api: FakeApi, invoke: Invoke) -> None:
    become(api, ended())
    invoke("run", "-g", "1", "-c", "2", "-m", "1G", "-t", "2h", "--label", "a=b", "--class", "idle",
           "--after", "x:any", "--mount", "in:/data/in", "--mount", "out:/data/out:rw", "--env", "K=V=W",
           "--image", "lab", "--name", "nine", "python", "x.py", "-c", "9")  # fmt: skip
    text = api.submitted[0].decode()
    assert 'command: [python, x.py, -c, "9"]' in text
    for line in ("  gpus: 1\n", "  cpus: 2\n", "  a: b\n", "  priority_class: idle\n", "image: lab\n",
                 "{job: x, condition: any}", "{source: in, target: /data/in}\n", '  K: "V=W"\n',
                 "{source: out, target: /data/out, read_only: false}\n", "name: nine\n"):  # fmt: skip
        assert line in text


def test_attempts_and_files_are_options(api: FakeApi, invoke: Invoke) -> None:
    become(api, ended())
    for option, line in (
        (("--retries", "2"), b"retry:\n  max_attempts: 3\n"),
        (("--retries", "0"), b"retry:\n  max_attempts: 1\n"),
        (("--no-retry",), b"retry:\n  max_attempts: 1\n"),
        (("--keep-files",), b"checkpoint:\n  keep_files: true\n"),
    ):
        invoke("run", "--detach", *option, "true")
        assert line in api.submitted[-1]


def test_a_program_whose_name_has_blanks_is_one(api: FakeApi, invoke: Invoke, here: Path) -> None:
    become(api, ended())
    (here / "my program").touch()
    assert invoke("run", "--no-code", "my program").exit_code == 0


def test_own_checkpoints_are_described_in_two_options(api: FakeApi, invoke: Invoke) -> None:
    become(api, ended())
    invoke("run", "--checkpoint", "out/c-*", "--resume-args", "--resume '{newest}'", "true")
    text = api.submitted[0].decode()
    assert 'checkpoint:\n  files: "out/c-*"\n  resume_args: [--resume, "{newest}"]\n' in text
    wrong = invoke("run", "--checkpoint", "x", "--resume-args", "'", "true")
    assert (wrong.exit_code, len(wrong.stderr.splitlines())) == (2, 1)


def test_a_variable_without_a_value_is_taken_from_here(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "7 of 9")
    become(api, ended())
    invoke("run", "--env", "FROM_HERE", "true")
    assert b'FROM_HERE: "7 of 9"\n' in api.submitted[0]


def test_a_secret_is_a_file_and_a_variable_where_that_is_said(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    become(api, ended())
    invoke("run", "--secret", "netrc=~/.netrc", "--secret-env", "HF_TOKEN", "true")
    text = api.submitted[0].decode()
    assert "secrets:\n  netrc: /home/ada/.netrc\n  HF_TOKEN: " in text
    assert "/home/ada/.config/runner/secrets/HF_TOKEN" in text
    assert "secret_env: [HF_TOKEN]\n" in text


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (("--secret", "=x", "true"), "'=x' is not NAME or NAME=FILE"),
        (("--secret-env", "x=", "true"), "'x=' is not NAME or NAME=FILE"),
        ((), "there is no COMMAND; write it behind the options: runner run -- python train.py"),
        (("-g", "1"), "there is no COMMAND"),
        (("--mount", "x", "true"), "'x' is not SRC:DST or SRC:DST:rw"),
        (("--mount", ":/data/x", "true"), "':/data/x' is not SRC:DST"),
        (("--env", "=x", "true"), "'=x' has no name"),
        (("--env", "NOT_SET_ANYWHERE", "true"), "'NOT_SET_ANYWHERE' is not set here"),
        (("--label", "x", "true"), "'x' is not KEY=VALUE"),
        (("--name", "\udcff", "true"), "is not UTF-8 text"),
        (("true", "\udcff"), "is not UTF-8 text"),
        (("python train.py --lr 3",), "write: runner run -- python train.py --lr 3"),
        (("python x.py | tee log",), "write: runner run -- bash -o pipefail -c 'python x.py | tee log'"),
        (("--no-retry", "--retries", "2", "true"), "--retries and --no-retry exclude each other"),
        (("--gpu", "1", "true"), "no such option '--gpu'; did you mean \"--gpus\"?"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_sent(
    api: FakeApi, invoke: Invoke, args: tuple[str, ...], fact: str
) -> None:
    result = invoke("run", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert fact.replace('"', "'") in result.stderr.replace('"', "'")
    assert len(result.stderr.splitlines()) == 1
    assert not api.asked


def test_what_the_daemon_refuses_is_told_with_the_option(api: FakeApi, invoke: Invoke) -> None:
    api.problem = Problem(422, "usage", 2, "runner run:6:3: resources.memory: must be a size")
    result = invoke("run", "-m", "lots", "true")
    assert (result.exit_code, result.stderr) == (2, "runner run: --memory: must be a size\n")


def test_detached_prints_what_submit_prints(api: FakeApi, invoke: Invoke) -> None:
    result = invoke("run", "--detach", "true")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "000001\trunner run\n", "")
    assert [path for _, path, _ in api.asked] == ["/v1/jobs"]


def test_a_dry_run_submits_nothing(api: FakeApi, invoke: Invoke) -> None:
    result = invoke("run", "--dry-run", "true")
    assert result.stdout.splitlines()[-1] == "all of it   --json"
    assert not api.jobs


def test_as_json_each_change_and_the_output_are_objects(api: FakeApi, invoke: Invoke) -> None:
    api.logs = {("000001", 1): "größe 3\n".encode()}
    become(
        api,
        {"state": "queued", "attempts": []},
        {"state": "queued", "attempts": []},
        {**ended(), "attempts": [an_attempt(1)]},
    )
    result = invoke("run", "--json", "true")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["state"] for line in lines if "state" in line] == ["queued", "finished"]
    output = [line for line in lines if "text" in line]
    assert "".join(line["text"] for line in output) == "größe 3\n"
    assert output[0].keys() == {"attempt", "offset", "cut", "text"}


@pytest.mark.parametrize(
    ("args", "image"),
    [
        (
            ("--with", "tqdm>=4", "--with", "x"),
            'image:\n  requirements: ["-r requirements.txt", "tqdm>=4", x]\n',
        ),
        (("--no-requirements", "--with", "x"), "image:\n  requirements: [x]\n"),
        (("--requirements", "r.txt"), "image:\n  requirements: r.txt\n"),
        (("--requirements", "r.txt", "--with", "x"), 'image:\n  requirements: ["-r r.txt", x]\n'),
        (("--image", "lab", "--with", "x"), "image:\n  base: lab\n  requirements: [x]\n"),
        (("--image", "lab"), "image: lab\n"),
        (
            ("--system", "make", "--system", "git"),
            "image:\n  requirements: requirements.txt\n  system: [make, git]\n",
        ),
        (("--no-requirements", "--system", "make"), "image:\n  system: [make]\n"),
        ((), "image:\n  requirements: requirements.txt\n"),
        (("--code", "sub"), "image:\n  requirements: sub/requirements.txt\n"),
        (("--no-requirements",), ""),
        (("--no-code",), ""),
    ],
)
def test_packages_become_the_image(
    api: FakeApi, invoke: Invoke, here: Path, args: tuple[str, ...], image: str
) -> None:
    (here / "sub").mkdir()
    for path in (here, here / "sub"):
        (path / "requirements.txt").write_text("tqdm\n")
    become(api, ended())
    result = invoke("run", *args, "true")
    text = api.submitted[0].decode()
    assert image in text
    assert ("image" in text) == bool(image)
    assert ("packages: " in result.stderr) == ("requirements.txt" in image)


@pytest.mark.parametrize(
    ("file", "is_told"),
    [
        (("environment.yml", "dependencies: [numpy]\n"), True),
        (("Pipfile", "[packages]\n"), True),
        (("poetry.lock", ""), True),
        (("pyproject.toml", '[tool.poetry.dependencies]\nnumpy = "^1"\n'), True),
        (("requirements-dev.txt", "numpy\n"), True),
        (("requirements.in", "numpy\n"), True),
        (("pyproject.toml", '[dependency-groups]\ntrain = ["numpy"]\n'), True),
        (("uv.lock", ""), True),
        (("pylock.gpu.toml", ""), True),
        (("requirements/base.txt", "numpy\n"), True),
        (("requirements/README", ""), False),
        (("setup.cfg", "[flake8]\n"), False),
        (("pyproject.toml", "[tool.ruff]\n"), False),
        (("notes.txt", ""), False),
    ],
)
def test_packages_that_are_not_taken_unasked_are_told(
    api: FakeApi, invoke: Invoke, here: Path, file: tuple[str, str], *, is_told: bool
) -> None:
    name, text = file
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text(text)
    become(api, ended())
    said = f"packages: {name} is left out; --requirements {name} takes it, or says what of it can be taken"
    assert (said in invoke("run", "true").stderr) is is_told
    assert b"image" not in api.submitted[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.py", "setup(name='mine', package_dir={'': 'src'})\n"),
        ("setup.cfg", "[metadata]\nname = mine\n[options.entry_points]\n"),
        ("pyproject.toml", '[project]\nname = "mine"\n'),
        ("train.py", "# /// script\n# dependencies = ['tqdm']\n# ///\n"),
    ],
)
def test_a_project_or_script_of_any_tool_is_taken_and_told(
    api: FakeApi, invoke: Invoke, here: Path, name: str, text: str
) -> None:
    (here / name).write_text(text)
    become(api, ended())
    assert f"packages: {name}; --no-requirements" in invoke("run", "python", "train.py", "-x").stderr
    assert f"requirements: {name}\n" in api.submitted[0].decode()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("poetry.lock", "the versions of poetry.lock are not read; write them down: poetry export -o"),
        ("pdm.lock", "the versions of pdm.lock are not read; write them down: pdm export -o"),
        (
            "[dependency-groups]\ntrain = []\ndev = []\n",
            "the groups train, dev of dependencies are left out; write one down: uv export -o",
        ),
        ("[[tool.uv.index]]\nurl = 'https://x'\n", "those of tool.uv are left out"),
        ("[tool.uv]\nfind-links = ['x']\n", "those of tool.uv are left out"),
        ("[[tool.uv.index]]\nurl = 'https://x'\nexplicit = true\n", None),
        ("[tool]\nuv = 5\n", None),
        ("[tool.pixi.dependencies]\nnumpy = '*'\n", "tool.pixi.dependencies: left out; list what the job"),
        ("[tool.uv]\ndev-dependencies = ['x']\n", "tool.uv.dev-dependencies: left out"),
        ("[tool.hatch.envs.default]\ndependencies = ['x']\n", "tool.hatch.envs: left out"),
    ],
)
def test_what_is_left_out_of_a_project_is_told(
    api: FakeApi, invoke: Invoke, here: Path, said: str, told: str | None
) -> None:
    more = "" if said.endswith(".lock") else said
    (here / "pyproject.toml").write_text(f'[project]\nname = "mine"\n{more}')
    (here / (said if not more else "x.txt")).write_text("")
    become(api, ended())
    lines = invoke("run", "true").stderr.splitlines()
    found = [line for line in lines if line.startswith("packages: ") and "--no-requirements" not in line]
    assert [told in line for line in found if told] == ([True] if told else [])
    assert bool(found) == bool(told)


def test_code_and_none_exclude_each_other(invoke: Invoke) -> None:
    result = invoke("run", "--no-code", "--code", ".", "true")
    assert (result.exit_code, result.stderr.count("--code and --no-code exclude each other")) == (2, 1)


@pytest.mark.parametrize(
    ("args", "said", "told"),
    [
        (("--with", "a=="), "runner run:9:3: image.requirements[0]: is none", "runner run: --with: is none"),
        (
            ("--requirements", "r.txt"),
            "r.txt: does not exist",
            "runner run: --requirements: r.txt: does not exist",
        ),
        (("--requirements", "r.txt"), "r.txt:3: no such package", "r.txt:3: no such package"),
    ],
)
def test_a_problem_of_packages_names_the_option_that_was_typed(
    api: FakeApi, invoke: Invoke, args: tuple[str, ...], said: str, told: str
) -> None:
    api.problem = Problem(422, "usage", 2, said)
    assert invoke("run", *args, "true").stderr == f"{told}\n"


def test_input_that_the_job_does_not_get_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "input").write_text("rows")
    told = "standard input is not passed on to the job"
    capture: list[str] = []
    monkeypatch.setattr(run, "complain", capture.append)
    reading, writing = os.pipe()
    with (here / "input").open() as file, os.fdopen(reading) as pipe, os.fdopen(writing, "w") as generator:
        for stdin, says in ((file, True), (pipe, False)):
            monkeypatch.setattr("sys.stdin", stdin)
            capture.clear()
            run.tell_of_input()
            assert any(told in line for line in capture) == says
        generator.write("rows")
        generator.flush()
        run.tell_of_input()
        assert told in capture[-1]


def test_requirements_and_none_exclude_each_other(invoke: Invoke) -> None:
    result = invoke("run", "--requirements", "x", "--no-requirements", "true")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_a_path_that_cannot_be_sent_is_told_with_its_option(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(path: str, text: bytes) -> str:
        monkeypatch.setenv("RUNNER_HOST", "gpu1")
        return send_files(path, text)

    monkeypatch.setattr(run, "placed", elsewhere)
    result = invoke("run", "--no-code", "--mount", "./out:/data/out:rw", "python", "train.py")
    told = 'runner run: --mount: "./out" is a path of the server; write it from /'
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, told)
    assert not api.submitted


# --- --save


def test_the_saved_file_is_the_one_that_was_sent(api: FakeApi, invoke: Invoke, here: Path) -> None:
    become(api, ended())
    assert invoke("run", "--save", "job.yaml", "python", "train.py").exit_code == 0
    assert (here / "job.yaml").read_bytes() == api.submitted[0]
    assert api.asked[0][2] is not None
    assert (api.asked[0][2]["path"], api.asked[0][2]["shown"]) == (str(here / "job.yaml"), "runner run")


def test_with_a_dry_run_the_file_is_written_and_nothing_submitted(
    api: FakeApi, invoke: Invoke, here: Path
) -> None:
    invoke("run", "--dry-run", "--save", "job.yaml", "true")
    assert b"command" in (here / "job.yaml").read_bytes()
    assert not api.jobs


def test_a_refused_job_leaves_no_file(api: FakeApi, invoke: Invoke, here: Path) -> None:
    api.problem = Problem(422, "usage", 2, "runner run:6:3: resources.memory: must be a size")
    result = invoke("run", "--save", "job.yaml", "-m", "lots", "true")
    assert result.stderr == "runner run: --memory: must be a size\n"
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("file", "fact"),
    [
        ("old.yaml", "old.yaml: exists already; give --save another name or remove it"),
        ("no/x.yaml", "no/x.yaml: cannot be written: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_sent(
    api: FakeApi, invoke: Invoke, here: Path, file: str, fact: str
) -> None:
    (here / "old.yaml").write_text("mine")
    result = invoke("run", "--save", file, "true")
    assert (result.exit_code, result.stderr) == (2, f"{fact}\n")
    assert not api.submitted
    assert (here / "old.yaml").read_text() == "mine"


def test_paths_are_relative_to_the_saved_file(tmp_path: Path) -> None:
    line = CommandLine(("true",), code=".", mounts=({"source": "in", "target": "/data/in"},))
    moved = relocate(line, tmp_path / "project", Path("../jobs/a/b.yaml"))
    assert moved.code == "../../project"
    assert moved.mounts[0]["source"] == "../../project/in"
    same = relocate(line, tmp_path, Path("b.yaml"))
    assert same == line
    fixed = relocate(
        CommandLine(("true",), mounts=({"source": "/x", "target": "/data"},)), tmp_path, Path("a/b")
    )
    assert (fixed.code, fixed.mounts[0]["source"]) == (None, "/x")


# --- Ctrl-C


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("answers", "cancels"), [("zz d", False), ("zz cancel", True), ("C", True)])
def test_an_answer_that_is_neither_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, answers: str, *, cancels: bool
) -> None:
    typed = iter(answers.split())
    questions: list[str] = []

    monkeypatch.setattr(run, "_typed_line", lambda: f"{next(typed)}\n")
    monkeypatch.setattr("click.echo", lambda question, **_: questions.append(question))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    assert run.wants_cancel("train") == cancels
    assert len(questions) == len(answers.split())


Answer = Callable[..., str]


def test_an_interrupt_without_a_terminal_detaches(api: FakeApi, invoke: Invoke) -> None:
    api.turns["wait"].append(interrupt)
    result = invoke("run", "true")
    assert result.exit_code == 130
    assert "runner run goes on: runner logs -f runner run" in result.stderr
    assert api.jobs["000001"]["state"] == "running"


def test_who_answers_cancel_sees_the_job_end(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "wants_cancel", lambda _: True)
    api.logs = {("000001", 1): b"once\n"}
    api.turns["wait"].extend([lambda: None, interrupt])
    result = invoke("run", "true")
    assert (result.exit_code, result.stdout) == (11, "once\n")
    assert result.stderr.splitlines()[-1] == "runner run: cancelled by ada"


def test_a_pending_interrupt_is_raised_where_it_is_allowed() -> None:
    with run_follow.Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            raise AssertionError
        with interrupts.allowed():
            pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
