"""Upload of a submission: the files that a job file names, under their paths on this machine."""

import os
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.base.textfile import FileError
from runner.cli import upload
from runner.cli.upload import Tree, send_files

JOB = "workload: {kind: program, command: [python, train.py], code: ../src}\n"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tree]:
    """Return the trees that are sent to a server, which keeps them at /tree."""
    found: list[Tree] = []

    def keep(_host: str, tree: Tree) -> str:
        found.append(tree)
        return "/tree"

    monkeypatch.setenv("RUNNER_HOST", "gpu1")
    monkeypatch.setattr(upload, "_send", keep)
    return found


def test_code_beside_the_directory_of_the_job_file_is_found_from_there(
    tmp_path: Path, sent: list[Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jobs", "src", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "src/train.py").write_text("")
    monkeypatch.chdir(tmp_path / "elsewhere")
    place = send_files("../jobs/train.yaml", JOB.encode())
    assert place == f"/tree{tmp_path}/jobs/train.yaml"
    [tree] = sent
    here = str(tmp_path).removeprefix("/")
    assert tree.directories == {f"{here}/jobs", f"{here}/src"}
    assert set(tree.files) == {f"{here}/src/train.py"}


def test_requirements_are_sent_with_the_files_that_they_include(tmp_path: Path, sent: list[Tree]) -> None:
    for name in ("jobs", "src", "shared/more"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shared/base.txt").write_text("-r more/all.txt  # comment\n-c pins.txt\ntqdm\n")
    (tmp_path / "shared/more/all.txt").write_text("-r ../base.txt\n-r absent.txt\n-r /etc/passwd\n")
    (tmp_path / "shared/pins.txt").write_text("tqdm==4\n")
    (tmp_path / "jobs/own.txt").write_text("tqdm\n")
    job = f"image: {{requirements: ../shared/base.txt}}\n{JOB}"
    send_files(str(tmp_path / "jobs/train.yaml"), job.encode())
    listed = f"image: {{requirements: [tqdm, -r ../shared/pins.txt, -r own.txt]}}\n{JOB}"
    send_files(str(tmp_path / "jobs/train.yaml"), listed.encode())
    here = str(tmp_path).removeprefix("/")
    assert [set(tree.files) for tree in sent] == [
        {f"{here}/shared/{name}" for name in ("base.txt", "more/all.txt", "pins.txt")},
        {f"{here}/shared/pins.txt", f"{here}/jobs/own.txt"},
    ]


def test_the_lock_of_a_project_goes_with_it(tmp_path: Path, sent: list[Tree]) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    (tmp_path / "uv.lock").write_text("version = 1\n")
    send_files(str(tmp_path / "train.yaml"), b"image: {requirements: pyproject.toml}\n")
    assert {Path(name).name for name in sent[0].files} == {"pyproject.toml", "uv.lock"}


def test_a_virtual_environment_stays_where_it_works(tmp_path: Path, sent: list[Tree]) -> None:
    for name in ("jobs", "src", "src/venv"):
        (tmp_path / name).mkdir()
    (tmp_path / "src/venv/pyvenv.cfg").write_text("")
    (tmp_path / "src/train.py").write_text("")
    send_files(str(tmp_path / "jobs/train.yaml"), JOB.encode())
    here = str(tmp_path).removeprefix("/")
    assert set(sent[0].files) == {f"{here}/src/train.py"}
    assert f"{here}/src/venv" not in sent[0].directories


def test_a_directory_that_cannot_be_read_is_named(
    tmp_path: Path, sent: list[Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src/cache").mkdir(parents=True)
    scandir = os.scandir

    def guarded(path: str) -> object:
        if path == "cache":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    fact = "src/cache: cannot be read: Permission denied; list it in .runnerignore"
    with pytest.raises(UsageError, match=fact):
        send_files(str(tmp_path / "jobs.yaml"), JOB.replace("../", "").encode())
    assert sent == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mounts: [{source: ./out, target: /data/out, read_only: false}]", '5:19: mounts[0].source: "./out"'),
        ("secrets: {TOKEN: token}", '5:18: secrets.TOKEN: "token"'),
    ],
)
def test_a_path_that_a_job_reads_later_must_be_one_of_the_server(
    tmp_path: Path, sent: list[Tree], text: str, told: str
) -> None:
    job = JOB.replace("../src", ".")
    with pytest.raises(FileError) as error:
        send_files(str(tmp_path / "job.yaml"), f"\n\n\n{job}{text}\n".encode())
    assert str(error.value) == f"{tmp_path}/job.yaml:{told} is a path of the server; write it from /"
    assert not sent


def test_data_beside_the_job_file_are_no_data_of_the_server(tmp_path: Path, sent: list[Tree]) -> None:
    job = "workload: {kind: causal_lm, data: TEXTS, steps: 10, tokenizer: words/, init_from: weights}\n"
    with pytest.raises(FileError) as error:
        send_files(str(tmp_path / "job.yaml"), job.replace("TEXTS", "texts/").encode())
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["workload.data", "workload.tokenizer", "workload.init_from"]
    job = "workload: {kind: causal_lm, data: stdlib, steps: 10, tokenizer: /words, init_from: job/a/best}\n"
    send_files(str(tmp_path / "job.yaml"), job.encode())
    assert len(sent) == 1


def test_code_that_is_sent_is_not_live(tmp_path: Path, sent: list[Tree]) -> None:
    job = JOB.replace("../src", "{path: ., live: true}")
    with pytest.raises(FileError, match=r"workload\.code\.live: the code is sent as it is now; leave it out"):
        send_files(str(tmp_path / "job.yaml"), job.encode())
    assert not sent


def test_a_schedule_whose_files_are_here_is_for_their_machine(tmp_path: Path, sent: list[Tree]) -> None:
    (tmp_path / "src").mkdir()
    schedule = "schedule: {cron: '@daily', timezone: UTC}\n"
    with pytest.raises(FileError, match=r":2:1: schedule: reads its files each time; submit"):
        send_files(str(tmp_path / "job.yaml"), f"{JOB.replace('../', '')}{schedule}".encode())
    assert not sent
    send_files(str(tmp_path / "job.yaml"), f"workload: {{kind: program, command: [a]}}\n{schedule}".encode())
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("workload: {kind: program, command: [a], code: HERE}\n", "workload.code"),
        (f"policy: HERE/own\n{JOB}", "policy"),
        (f"image: {{requirements: HERE/own}}\n{JOB}", "image.requirements"),
        (f"image: {{dockerfile: HERE/own}}\n{JOB}", "image.dockerfile"),
    ],
)
def test_what_is_sent_has_a_relative_path_for_the_server_has_other_files_at_an_absolute_one(
    tmp_path: Path, sent: list[Tree], text: str, field: str
) -> None:
    for name in ("jobs", "src"):
        (tmp_path / name).mkdir()
    (tmp_path / "jobs/own").write_text("")
    fact = "is sent from this machine; write it relative to the job file"
    with pytest.raises(FileError, match=f"job.yaml:1:[0-9]+: {field}: .* {fact}$"):
        send_files(str(tmp_path / "jobs/job.yaml"), text.replace("HERE", f"{tmp_path}/jobs").encode())
    assert not sent


def test_a_policy_is_sent_with_those_that_it_extends(tmp_path: Path, sent: list[Tree]) -> None:
    for name, above in (("own", "./lab.yaml"), ("lab", "more/far.yaml"), ("more/far", "../own.yaml")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(f"policy: 1\nextends: {above}\n")
    (tmp_path / "of_server.yaml").write_text("policy: 1\nextends: /etc/passwd\n")
    job = "workload: {kind: program, command: [a]}\npolicy: "
    for policy in ("own.yaml", "./of_server.yaml", "default"):
        send_files(str(tmp_path / "job.yaml"), f"{job}{policy}\n".encode())
    here = str(tmp_path).removeprefix("/")
    assert [set(tree.files) for tree in sent] == [
        {f"{here}/{name}.yaml" for name in ("own", "lab", "more/far")},
        {f"{here}/of_server.yaml"},
        set(),
    ]
