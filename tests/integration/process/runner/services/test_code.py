"""The code of a program: what was submitted is what runs, and what differs is told."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import Service, service, until

SCRIPT = """\
import os, time
print("version 1 finds", sorted(os.listdir()), flush=True)
open(f"output {os.environ['RUNNER_ATTEMPT']}", "w").close()
while os.environ["RUNNER_ATTEMPT"] == os.environ.get("WAIT", "1"):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def submit(
    daemon: Service,
    name: str,
    code: Any = None,
    *,
    wait: str = "1",
    keep_files: bool = False,
) -> tuple[str, Path, Path]:
    """Submit a program with its code beside its job file; return its id, its code and its file."""
    place = daemon.root / f"code of {name}"
    place.mkdir()
    place.chmod(0o777)  # live code is written by the job's own user
    (place / "train.py").write_text(SCRIPT)
    file = daemon.file(
        name,
        workload={"kind": "program", "command": ["python3", "train.py"], "code": code or str(place)},
        resources={"cpus": 0.1, "memory": "64MiB"},
        environment={"WAIT": wait},
        checkpoint={"keep_files": keep_files},
        retry={"backoff": "0s"},
    )
    return daemon.submit(file), place, file


def test_a_further_attempt_without_a_checkpoint_begins_with_the_submitted_code(daemon: Service) -> None:
    job_id, _, _ = submit(daemon, "afresh")
    until(lambda: "version 1" in daemon.log(job_id), "the first attempt has begun")
    daemon.runner("kill", job_id, "--signal", "KILL")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert "version 1 finds ['train.py']" in daemon.log(job_id, 2)
    work = daemon.paths(job_id).work_dir
    assert (names(work), names(work.with_name("1.before-2"))) == (
        ["output 2", "train.py"],
        ["output 1", "train.py"],
    )
    told = "attempt 2 started, from the submitted code; what was written before is in work/1.before-2"
    assert told in daemon.runner("events", job_id)


def test_a_resumed_attempt_runs_what_was_submitted_where_the_last_one_worked(daemon: Service) -> None:
    job_id, place, _ = submit(daemon, "kept", keep_files=True)
    until(lambda: "version 1" in daemon.log(job_id), "the first attempt has begun")
    (place / "train.py").write_text(SCRIPT.replace("version 1", "version 2"))
    daemon.runner("kill", job_id, "--signal", "KILL")
    assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert "version 1 finds ['output 1', 'train.py']" in daemon.log(job_id, 2)
    assert names(daemon.paths(job_id).work_dir) == ["output 1", "output 2", "train.py"]
    assert "attempt 2 started, in the files of the attempt before" in daemon.runner("events", job_id)
    told = daemon.runner("diff", job_id)
    assert '-print("version 1 finds", sorted(os.listdir()), flush=True)' in told.splitlines()
    assert '+print("version 2 finds", sorted(os.listdir()), flush=True)' in told.splitlines()


def test_from_scratch_begins_in_a_fresh_directory(daemon: Service) -> None:
    job_id, _, _ = submit(daemon, "scratch", wait="none")
    daemon.ends(job_id)
    daemon.runner("restart", job_id, "--from", "scratch")
    until(lambda: len(daemon.job(job_id)["attempts"]) == 2, "the second attempt")
    daemon.ends(job_id)
    assert "version 1 finds ['train.py']" in daemon.log(job_id, 2)
    assert names(daemon.paths(job_id, 2, 2).work_dir) == ["output 2", "train.py"]


def test_live_code_is_as_it_is_when_an_attempt_starts_and_show_says_so(daemon: Service) -> None:
    place = daemon.root / "code of live"
    job_id, _, _ = submit(daemon, "live", {"path": str(place), "live": True})
    until(lambda: "version 1" in daemon.log(job_id), "the first attempt has begun")
    (place / "train.py").write_text(SCRIPT.replace("version 1", "version 2"))
    daemon.runner("kill", job_id, "--signal", "KILL")
    daemon.ends(job_id)
    assert "version 2" in daemon.log(job_id, 2)
    assert "nothing promises that it stays the same" in daemon.runner("show", job_id)
    assert not daemon.paths(job_id).work_dir.exists()


def test_new_code_is_applied_and_an_edited_job_file_beside_it_is_no_new_code(daemon: Service) -> None:
    job_id, place, _ = submit(daemon, "applied")
    until(lambda: "version 1" in daemon.log(job_id), "the first attempt has begun")
    inside = shutil.copy(daemon.root / "applied.yaml", place)
    answer = daemon.answer("apply", str(inside), "--job", job_id, "--dry-run", "--json")
    assert answer["changes"] == []
    (place / "train.py").write_text(SCRIPT.replace("version 1", "version 3"))
    text = (daemon.root / "applied.yaml").read_text()
    (daemon.root / "applied.yaml").write_text(
        text.replace('"name": ', '"allow": ["changed_training"], "name": ')
    )
    changed = ("apply", str(daemon.root / "applied.yaml"), "--job", job_id)
    alone = daemon.answer(*changed, "--file-only", "--dry-run", "--json")
    assert [each["field"] for each in alone["changes"]] == ["allow"]
    assert "there is no checkpoint to resume from" in daemon.runner(*changed, code=3)
    assert "workload.code" in daemon.runner(*changed, "--at-next-start")
    daemon.runner("kill", job_id, "--signal", "KILL")
    daemon.ends(job_id)
    assert "version 3 finds ['applied.yaml', 'train.py']" in daemon.log(job_id, 2)


def test_two_jobs_two_revisions_and_a_file_are_compared(daemon: Service) -> None:
    first, place, file = submit(daemon, "first", wait="none")
    (place / "gone.txt").write_text("one\n")
    first = daemon.submit(file)
    planned = daemon.answer("submit", str(file), "--dry-run", "--json")
    assert planned["job"]["network"] == "host"  # what a process has, whatever its file says
    second, other, _ = submit(daemon, "second", wait="none")
    for job_id in (first, second):
        daemon.ends(job_id)
    (place / "added.txt").write_text("one\n")
    (place / "gone.txt").unlink()
    (place / "blob").write_bytes(b"\0\1")
    told = daemon.runner("diff", first, str(file)).splitlines()
    assert "+++ b/added.txt" in told
    assert "+++ /dev/null" in told
    assert "blob: absent -> file of 2 bytes; not compared line by line" in told
    assert f"{other}" in daemon.runner("diff", first, second)
    assert daemon.runner("diff", f"{second}@1", second).strip().endswith("nothing differs")
    assert "has no revision 7; it has 1" in daemon.runner("diff", f"{second}@7", second, code=3)
    answer = daemon.answer("diff", first, str(file), "--json")
    assert [each["path"] for each in answer["code"]] == ["added.txt", "blob", "gone.txt"]


def test_code_that_cannot_be_kept_is_refused_at_its_place_and_leaves_nothing(daemon: Service) -> None:
    place = daemon.root / "code of refused"
    place.mkdir()
    for name in ("a\nb", "c\nd"):
        (place / name).touch()
    (place / "out").symlink_to("/etc/passwd")
    file = daemon.file("refused", workload={"kind": "program", "command": ["true"], "code": str(place)})
    told = daemon.runner("submit", str(file), code=2)
    for name in ("a\\nb", "c\\nd"):
        assert f"workload.code: {name}: has a line break in its name; rename it, or list it" in told
    assert told.count("\n") == 2
    for path in place.glob("*\n*"):
        path.unlink()
    told = daemon.runner("submit", str(file))
    assert "warning: workload.code: out is a link to /etc/passwd, and is left out; it belongs to" in told


PROJECT = """\
[project]
name = "my-model"
version = "1.4"
dependencies = []
[project.scripts]
train-model = "my_model.cli:main"
"""
CLI = """\
import sys, importlib.metadata
def main():
    print(sys.argv[1:], importlib.metadata.version("my-model"), __file__)
"""


@pytest.mark.parametrize("asked", [["-e ."], "pyproject.toml"])
def test_a_project_of_the_users_own_is_installed_from_the_snapshot(daemon: Service, asked: object) -> None:
    name = f"own-{len(str(asked))}"
    place = daemon.root / name
    (place / "src/my_model").mkdir(parents=True)
    (place / "pyproject.toml").write_text(PROJECT)
    (place / "src/my_model/__init__.py").touch()
    (place / "src/my_model/cli.py").write_text(CLI)
    command = "cd /; train-model --lr 1 && python3 -m my_model.cli && yes | head -1; exit $?"
    (place / "job.yaml").write_text(
        json.dumps(
            {
                "name": name,
                "workload": {"kind": "program", "command": ["bash", "-c", command], "code": "."},
                "resources": {"cpus": 0.1, "memory": "64MiB"},
                "image": {"requirements": asked},
            }
        )
    )
    job_id = daemon.submit(place / "job.yaml")
    ended = daemon.ends(job_id)
    log = daemon.log(job_id)
    assert ended["outcome"] == "succeeded", log
    assert "runner: packages: my-model 1.4 is taken from the code, with its commands train-model" in log
    assert "['--lr', '1'] 1.4 " in log
    assert "/work/1/src/my_model/cli.py" in log
    assert "Broken pipe" not in log  # Python ignores the signal, and a program should not


def test_two_projects_of_one_namespace_find_each_other_and_no_index_is_asked(daemon: Service) -> None:
    place = daemon.root / "own-two"
    for name, text in (
        ("a", "X = 1\n"),
        ("b", "def main():\n    from lab.a import X\n    print('found', X)\n"),
    ):
        (place / f"libs/{name}/src/lab").mkdir(parents=True)
        (place / f"libs/{name}/src/lab/{name}.py").write_text(text)
    (place / "libs/a/setup.cfg").write_text("[metadata]\nname = lab-a\nversion = attr: lab.a.X\n")
    project = '[project]\nname = "lab-b"\nversion = "1"\ndependencies = ["Lab.A>=1"]\n'
    (place / "libs/b/pyproject.toml").write_text(f'{project}[project.scripts]\nlab-b = "lab.b:main"\n')
    file = daemon.file(
        "own-two",
        workload={"kind": "program", "command": ["bash", "-c", "cd / && lab-b"], "code": str(place)},
        resources={"cpus": 0.1, "memory": "64MiB"},
        image={"requirements": ["-e own-two/libs/b", "-e own-two/libs/a"]},
    )
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    log = daemon.log(job_id)
    assert "found 1" in log
    assert "lab-a of a version that only its build knows is taken from libs/a in the code" in log


def test_a_path_of_python_in_the_environment_is_that_of_the_program(daemon: Service) -> None:
    job_id, _, _ = submit(daemon, "path", wait="0")
    daemon.ends(job_id)
    place = daemon.root / "code of path"
    (place / "lib").mkdir()
    (place / "lib/mine.py").touch()
    file = daemon.file(
        "with-path",
        workload={"kind": "program", "command": ["python3", "-c", "import mine"], "code": str(place)},
        resources={"cpus": 0.1, "memory": "64MiB"},
        environment={"PYTHONPATH": "lib"},
    )
    assert daemon.ends(daemon.submit(file))["outcome"] == "succeeded"


def test_a_program_that_misses_ignored_data_is_told_so_where_its_owner_looks(daemon: Service) -> None:
    place = daemon.root / "code of ignored"
    (place / "data").mkdir(parents=True)
    (place / "data/train.bin").write_bytes(bytes(5000))
    (place / ".gitignore").write_text("data/\n")
    workload = {"kind": "program", "command": ["python3", "-c", "open('data/train.bin')"], "code": str(place)}
    file = daemon.file("ignored", workload=workload, resources={"cpus": 0.1, "memory": "64MiB"})
    told = "git ignores data (4.9 KiB), and the job does not get "
    assert f"warning: workload.code: {told}them; to take data along, write !/data into" in daemon.runner(
        "submit", str(file)
    )
    ended = daemon.ends("ignored")
    assert ended["outcome"] == "failed"
    assert f"{told}it; to take data along, write !/data into .runnerignore" in ended["why"]
    assert ", without data" in daemon.runner("show", "ignored")
    (place / ".runnerignore").write_text("!/data\n")
    assert daemon.ends(daemon.submit(file))["outcome"] == "succeeded"


def answer(daemon: Service, place: Path, command: str, code: int = 2) -> str:
    """Return what is said of the submission of a command in a directory, which is held to its exit code."""
    return daemon.runner("run", "--dry-run", "--code", str(place), "--", *command.split(), code=code)


def test_a_script_that_the_code_lacks_is_told_at_submission(daemon: Service, tmp_path: Path) -> None:
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    (place / "src" / "train.py").touch()
    (place / "local.py").touch()
    (place / ".gitignore").write_text("local.py\n")
    (place / "linked").symlink_to("src")
    said = answer(daemon, place, "python train.py")
    assert said == "runner run: COMMAND: train.py is not in the code of the job; did you mean src/train.py?\n"
    said = answer(daemon, place, "bash no_such.sh")
    assert said == "runner run: COMMAND: no_such.sh is not in the code of the job\n"
    said = answer(daemon, place, "python -u local.py")
    assert "git ignores local.py (0 B), and the job does not get it; to take local.py along, write" in said
    (place / "go.sh").touch()
    said = answer(daemon, place, "go.sh")
    assert "COMMAND: a program of the working directory begins with ./ : ./go.sh, or bash go.sh" in said
    said = answer(daemon, place, "./go.sh")
    assert "COMMAND: ./go.sh may not be executed: chmod +x ./go.sh, or bash ./go.sh" in said
    for command in ("python src/train.py", "python ./linked/train.py", "python -m train", "python /x.py"):
        answer(daemon, place, command, code=0)
