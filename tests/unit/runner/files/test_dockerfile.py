"""The Dockerfile of a job, at its submission."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.base import privileges
from runner.base.errors import UsageError
from runner.base.textfile import FileError
from runner.files.dockerfile import check_dockerfile
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.revision import path_below
from runner.files.settings.model import Settings
from runner.files.settings.packages import PackagesSettings
from runner.services.submission.resolve import dockerfile_refusal


def job(image: str) -> JobFile:
    text = f"workload: {{kind: program, command: [./x], code: .}}\nimage: {image}\n"
    return parse_job(text.encode(), Path("job.yaml"))


def test_the_operator_decides_and_ones_own_daemon_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job("{dockerfile: Dockerfile}")
    assert dockerfile_refusal(Settings(), job("auto")) is None
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    assert dockerfile_refusal(Settings(), asked) is None
    assert Settings().dockerfile_network
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    refused = str(dockerfile_refusal(Settings(), asked))
    assert refused.startswith("image.dockerfile (line 2): not allowed here; the operator decides (packages.")
    assert not Settings().dockerfile_network
    allowed = Settings(packages=PackagesSettings(dockerfiles=True, dockerfile_network="bridge"))
    assert dockerfile_refusal(allowed, asked) is None
    assert allowed.dockerfile_network


@pytest.mark.parametrize(
    ("image", "fact"),
    [
        ("{dockerfile: Dockerfile, name: lab}", 'has no name; write base: "lab"'),
        ("{dockerfile: Dockerfile, system: [gcc]}", "image.system: goes not with a dockerfile"),
    ],
)
def test_what_goes_not_together_is_told(image: str, fact: str) -> None:
    with pytest.raises(FileError) as raised:
        job(image)
    assert fact in raised.value.lines[0]


def refused(files: Mapping[str, bytes | str]) -> tuple[str, ...]:
    def read(path: Path) -> bytes:
        found = files.get(str(path))
        if not isinstance(found, bytes):
            raise UsageError(f"{path}: {found}")
        return found

    with pytest.raises(FileError) as raised:
        check_dockerfile(read, Path("/here"), "c/Dockerfile", frozenset())
    return raised.value.lines


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("does not exist", "c/Dockerfile: does not exist"),
        (b"\xff", "c/Dockerfile: is not UTF-8 text"),
        (b"#" * 300_000, "c/Dockerfile: is larger than 256 KiB"),
        (b"FROM ${BASE}\nVOLUME /x\n", "c/Dockerfile:2:1: VOLUME /x: VOLUME is for the engine's own storage"),
    ],
)
def test_a_problem_is_told_at_its_line(content: bytes | str, line: str) -> None:
    [found] = refused({"/here/c/Dockerfile": content})
    assert found.startswith(line)


def test_a_path_is_below_a_directory_whatever_it_is_written_like() -> None:
    assert path_below(Path("/a/b/../b/c/Dockerfile"), Path("/a/b/")) == "c/Dockerfile"
    assert path_below(Path("/a/b/../Dockerfile"), Path("/a/b")) is None
