"""Files of a job that are sent to a server: git is asked what it tracks."""

import json
import os
import subprocess
from pathlib import Path
from typing import Self

import pytest

from runner.base.errors import Unavailable, UsageError
from runner.cli import upload
from runner.cli.placing import placed
from runner.cli.receive import take_tree
from runner.cli.upload import MOST_BYTES, Tree, send_files

JOB = b"workload: {kind: program, command: [python, train.py], code: src}\npolicy: ./mine.yaml\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "src/lib").mkdir(parents=True)
    (place / "src/train.py").write_text("print(1)\n")
    (place / "src/lib/helper.py").write_text("x = 1\n")
    (place / "src/link").symlink_to("lib")
    (place / "src/secret.env").write_text("key\n")
    (place / "src/.gitignore").write_text("*.env\n")
    (place / "mine.yaml").write_text("policy: 1\n")
    (place / "job.yaml").write_bytes(JOB)
    return place


def names(tree: Tree, project: Path) -> set[str]:
    prefix = str(project).removeprefix("/") + "/"
    return {path.removeprefix(prefix) for path in tree.files}


def test_the_code_and_the_named_files_go_without_what_is_ignored(project: Path) -> None:
    tree = Tree()
    for path in upload._wanted(project / "job.yaml", JOB):
        tree.add(path)
    assert names(tree, project) == {"src/train.py", "src/lib/helper.py", "src/.gitignore", "mine.yaml"}
    assert list(tree.links.values()) == ["lib"]
    said = json.loads(tree.head())
    assert said["files"] == sorted(said["files"])


def test_what_git_tracks_goes_though_it_is_ignored(project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    subprocess.run(["git", "-C", project, "add", "-f", "src/secret.env"], check=True)
    tree = Tree()
    tree.add(project / "src")
    assert "src/secret.env" in names(tree, project)
    assert not any(".git/" in path for path in tree.files)


def test_too_much_is_refused_with_the_largest_files(project: Path) -> None:
    with (project / "src/weights.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    tree = Tree()
    tree.add(project / "src")
    with pytest.raises(
        UsageError, match=r"list in .runnerignore what is not needed; the largest: .*weights.bin"
    ):
        tree.check()


def test_what_cannot_be_sent_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(project / "src/pipe")
    (project / "src/secret.env").write_bytes(bytes(300))
    tree = Tree()
    tree.add(project / "src")
    assert f"{project}/src/pipe: is no file, link or directory, and is not sent" in capsys.readouterr().err
    assert ["secret.env", "file", 1, 300] in [row[:4] for row in tree.left_out]
    with pytest.raises(UsageError, match=r"workload.code: gone: there is no such directory"):
        list(upload._wanted(project / "job.yaml", JOB.replace(b"src", b"gone")))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"a: [", b"\xff", b"workload: 7", b"workload: {code: {path: 7}}"]
)
def test_a_file_that_cannot_be_read_is_left_to_the_server(project: Path, text: bytes) -> None:
    assert list(upload._wanted(project / "job.yaml", text)) == []


def test_without_a_host_a_path_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOST", "")
    assert placed("job.yaml", JOB) == "job.yaml"
    with pytest.raises(UsageError, match="no server is chosen"):
        send_files("job.yaml", JOB)


def test_files_arrive_as_they_are(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOST", "ssh://gpu1")
    monkeypatch.setattr(upload, "run_there", lambda *_words, **_options: Receiver(tmp_path / "received"))
    place = Path(send_files(str(project / "job.yaml"), JOB))
    assert str(place).endswith(str(project / "job.yaml"))
    assert (place.parent / "src/lib/helper.py").read_text() == "x = 1\n"
    assert not (place.parent / "src/secret.env").exists()
    monkeypatch.setattr(upload, "run_there", lambda *_words, **_options: Receiver(None))
    with pytest.raises(Unavailable, match="could not be sent; nothing was submitted"):
        send_files(str(project / "job.yaml"), JOB)


class Receiver:
    """The other side, in a process of its own."""

    def __init__(self, place: Path | None) -> None:
        self._to, theirs = os.pipe()
        back, ours = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(theirs)
            os.close(back)
            with os.fdopen(self._to, "rb") as source, os.fdopen(ours, "wb") as answers:
                if place is not None:
                    take_tree(place, source, answers)
            os._exit(0)
        os.close(self._to)
        os.close(ours)
        self.stdin, self.stdout = os.fdopen(theirs, "wb"), os.fdopen(back, "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                continue
        os.waitpid(self.pid, 0)
