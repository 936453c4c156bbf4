import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fakes.daemon.api import FakeApi, ended
from tests.fakes.patience import patience

USE = {
    "who": "ada", "device_s": 0.0, "cpu_s": 3600.0, "share": 1.0, "efficiency": 1.0, "utilisation": None,
    "attempts": 1, "gave_way": 0, "gave_way_cost_s": 0.0, "preferred": 0, "spared_wait_s": 0.0}  # fmt: skip
RUNNER = (sys.executable, "-m", "runner.cli.main")


def imported_by(*args: str) -> set[str]:
    """Return the modules that a command has loaded when it is done, in a process of its own."""
    script = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "from runner.cli.main import main\n"
        f"sys.argv[1:] = {list(args)!r}\n"
        "main()\n"
    )
    # A coverage tool that starts with every Python would be counted among what we import.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_submit_loads_click_and_the_standard_library_and_nothing_else(api: FakeApi, job_file: Path) -> None:
    modules = imported_by("submit", str(job_file))
    top = {name.partition(".")[0] for name in modules}
    known = sys.stdlib_module_names | {"click", "runner", "__main__", "_distutils_hack", "sitecustomize"}
    assert {name for name in top if name in known or name.startswith("_")} == top
    assert {name for name in modules if name.partition(".")[0] == "runner"} == {
        "runner", "runner.client", "runner.client.client", "runner.base", "runner.base.errors",
        "runner.base.file_systems", "runner.base.readable",
        "runner.client.autostart", "runner.client.http",
        "runner.cli", "runner.cli.entry",
        "runner.cli.main", "runner.cli.parameters", "runner.cli.console", "runner.cli.placing",
        "runner.cli.submit",
    }  # fmt: skip
    assert api.jobs["000001"]["name"] == "train"


@pytest.mark.parametrize(
    "module", ["asyncio", "http.client", "email", "pathlib", "dataclasses", "subprocess"]
)
def test_submit_does_not_load_what_costs_time(api: FakeApi, job_file: Path, module: str) -> None:
    assert module not in imported_by("submit", str(job_file))
    assert api.submitted


def test_the_exit_code_reaches_the_shell(api: FakeApi) -> None:
    api.add("train", **ended("failed", "no progress"))
    done = subprocess.run([*RUNNER, "wait", "train"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (10, "train: failed: no progress\n")
    assert done.stderr.startswith("train: runner logs ")


def test_a_reader_that_leaves_ends_the_command_quietly(api: FakeApi) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = b"x" * 64 * 50
    with subprocess.Popen(
        [*RUNNER, "logs", "train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == b""
    assert command.returncode == 141


def test_a_reader_that_leaves_a_list_ends_it_quietly(api: FakeApi) -> None:
    api.add("train")
    with subprocess.Popen([*RUNNER, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.stderr is not None
        assert command.stderr.read() == b""
    assert command.returncode == 141


@pytest.mark.parametrize("command", [["events", "-f"], ["logs", "-f", "train"]])
def test_a_reader_that_leaves_ends_a_command_that_waits_for_news(api: FakeApi, command: list[str]) -> None:
    job = api.add("train")
    api.logs[job["id"], 1] = b"first\n"
    api.events.append({
        "seq": 1, "at": "2030-01-01T00:00:00Z", "job": "1", "name": "train", "kind": "submitted", "text": "",
    })  # fmt: skip
    patient = threading.Event()

    def nothing_new() -> None:
        patient.wait(patience())

    kind = "log" if command[0] == "logs" else "events"
    api.happen(kind, lambda: None, *[nothing_new] * 3)
    with subprocess.Popen([*RUNNER, *command], stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stdout.readline()
        following.stdout.close()
        assert following.wait(patience()) == 141
    patient.set()


@pytest.mark.parametrize("words", [["validate"], ["submit"], ["policy", "simulate", "default", "--journal"]])
def test_standard_input_that_is_closed_is_one_line(api: FakeApi, words: list[str]) -> None:
    assert api.jobs == {}
    shell = ["sh", "-c", '"$@" <&-', "sh", *RUNNER, *words, "-"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    told = "-: standard input is closed; give the path of a file\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.parametrize("command", [["list"], ["submit"], ["--version"], ["usage"]])
def test_a_full_disk_under_the_output_is_one_line(api: FakeApi, job_file: Path, command: list[str]) -> None:
    api.add("train")
    there = {"device_s": 0, "cpu_s": 0}
    known = {"uses": [USE], "by": "user", "total": USE, "there": there, "switching_budget": 0.03}
    api.answers["usage"] = known
    args = [*command, *([str(job_file)] if command == ["submit"] else [])]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*RUNNER, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == (
        "standard output: No space left on device; the command itself may have been done: runner list\n"
    )


@pytest.mark.parametrize("command", [["validate", "nope.yaml"], ["show", "nope"], ["foo"], ["list", "--foo"]])
def test_an_error_that_cannot_be_told_has_its_exit_code_all_the_same(
    api: FakeApi, command: list[str]
) -> None:
    assert api.jobs == {}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*RUNNER, *command], stdout=subprocess.PIPE, stderr=full, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("command", [["submit", "{job_file}"], ["exec", "train", "true"]])
def test_without_an_output_nothing_is_done(api: FakeApi, job_file: Path, command: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "runner.cli.entry"]
    words = [each.format(job_file=job_file) for each in command]
    done = subprocess.run([*closed, *words], stderr=subprocess.PIPE, text=True, check=False)
    said = "standard output is closed; nothing was done; >/dev/null discards it\n"
    assert (done.returncode, done.stderr) == (4, said)
    assert api.asked == []


def test_a_daemon_needs_no_output() -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *RUNNER]
    done = subprocess.run([*closed, "serve", "--help"], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_exits_130(api: FakeApi) -> None:
    api.add("train")
    listening = ["env", "--default-signal=INT"]  # whoever runs the tests in the background ignores it
    with subprocess.Popen([*listening, *RUNNER, "wait", "train"], stderr=subprocess.PIPE) as command:
        api.turns["wait"].append(lambda: os.kill(command.pid, signal.SIGINT))
        assert command.stderr is not None
        assert command.stderr.read() == b"interrupted\n"
    assert command.returncode == 130


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["submit"], "runner submit: missing argument 'FILE...'; see runner submit --help"),
        (
            ["submit", "--folow", "x"],
            "runner submit: no such option '--folow'; did you mean '--follow'? see runner submit --help",
        ),
        (["sumbit"], "runner: there is no command 'sumbit'; did you mean \"submit\"? see runner --help"),
        (["--json", "list"], "runner: no such option '--json' before a command; see runner --help"),
        (
            ["policy", "--merged", "show"],
            "runner policy: no such option '--merged' before a command; see runner policy --help",
        ),
        (["--verion"], "runner: no such option '--verion'; did you mean '--version'? see runner --help"),
        (["submit", "--hold"], "runner submit: no such option '--hold'; see runner submit --help"),
        (["logs", "--quux"], "runner logs: no such option '--quux'; see runner logs --help"),
        (
            ["submit", "--dryrun"],
            "runner submit: no such option '--dryrun'; did you mean '--dry-run'? see runner submit --help",
        ),
        (["--nope"], "runner: no such option '--nope'; see runner --help"),
        (["list", "--label"], "runner list: option '--label' requires an argument; see runner list --help"),
        (
            ["policy", "simulate", "default", "--journal"],
            (
                "runner policy simulate: option '--journal' requires an argument; "
                "see runner policy simulate --help"
            ),
        ),
        (["policy", "nope"], "runner policy: no such command 'nope'; see runner policy --help"),
    ],
)
def test_what_was_mistyped_is_one_line(typed: list[str], line: str) -> None:
    done = subprocess.run([*RUNNER, *typed], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


@pytest.mark.parametrize("typed", [["submit", "-"], ["apply", "-"]])
def test_a_directory_that_has_gone_is_one_line(typed: list[str], api: FakeApi, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(gone), sys.executable, "-P", *RUNNER[1:], *typed],
        check=False, capture_output=True, text=True, input="name: x\n", env=environ,
    )  # fmt: skip
    said = "runner: the directory that you are in does not exist any more; cd to one that does\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert api.submitted == []


def test_an_interrupt_while_the_command_line_is_loaded_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.entry", "list"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
