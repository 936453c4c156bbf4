"""What a submission sends to a server: the files that a job file names, under their paths on this machine."""

from pathlib import Path

import pytest

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
