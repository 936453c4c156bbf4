"""Copying what a job has written: ``runner cp``."""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon.service import RUNNER, Service, service

SCRIPT = """\
import os
os.makedirs("out/deep")
open("out/model.bin", "wb").write(bytes(range(256)) * 20_000)
open("out/deep/run.sh", "w").write("x")
os.chmod("out/deep/run.sh", 0o755)
os.link("out/model.bin", "out/same.bin")
os.symlink("model.bin", "out/newest")
os.symlink("/etc/passwd", "out/leads")
os.mkfifo("out/pipe")
open(os.environ["HOME"] + "/note", "w").write("at home")
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


@pytest.fixture(scope="module")
def job(daemon: Service) -> str:
    place = daemon.root / "code"
    place.mkdir()
    (place / "train.py").write_text(SCRIPT)
    file = daemon.file(
        "made", workload={"kind": "program", "command": ["python3", "train.py"], "code": str(place)}
    )
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
    return job_id


def test_a_directory_is_copied_with_its_links_and_without_what_leads_out(
    daemon: Service, job: str, tmp_path: Path
) -> None:
    told = daemon.runner("cp", f"{job}:out", str(tmp_path), code=3)
    assert "leads: left out" in told
    made = tmp_path / "out"
    assert sorted(path.name for path in made.rglob("*")) == [
        "deep",
        "model.bin",
        "newest",
        "run.sh",
        "same.bin",
    ]
    assert (made / "model.bin").read_bytes() == bytes(range(256)) * 20_000 == (made / "same.bin").read_bytes()
    assert (str((made / "newest").readlink()), os.access(made / "deep" / "run.sh", os.X_OK)) == (
        "model.bin",
        True,
    )


def test_a_file_is_copied_to_a_name_and_from_the_run_directory(
    daemon: Service, job: str, tmp_path: Path
) -> None:
    daemon.runner("cp", f"{job}:out/model.bin", str(tmp_path / "mine"))
    assert (tmp_path / "mine").stat().st_size == 256 * 20_000
    daemon.runner("cp", f"{job}:/job/home/note", str(tmp_path))
    assert (tmp_path / "note").read_text() == "at home"
    daemon.runner("cp", f"{job}:/code/train.py", str(tmp_path))
    assert (tmp_path / "train.py").read_text() == SCRIPT
    daemon.runner("cp", f"{job}:", str(tmp_path / "all"), code=3)
    (tmp_path / "there").mkdir()
    daemon.runner("cp", f"{job}:", str(tmp_path / "there"), code=3)
    assert (tmp_path / "there" / "train.py").read_bytes() == (tmp_path / "all" / "train.py").read_bytes()
    assert (tmp_path / "all" / "train.py").read_text() == SCRIPT


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("out/deep", ["deep", "deep/run.sh"]),
        ("out/deep/.", [".", "./run.sh"]),
        ("out/deep/run.sh", ["run.sh"]),
    ],
)
def test_an_archive_goes_to_standard_output_under_the_name_of_what_is_copied(
    daemon: Service, job: str, path: str, names: list[str]
) -> None:
    command = [*RUNNER, "cp", f"{job}:{path}", "-"]
    done = subprocess.run(command, env=daemon.environ, cwd=daemon.root, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert archive.getnames() == names


WRONG = [
    (":out/absent", "out/absent: does not exist"),
    (":../../../etc", '"../../../etc": leads out of the job; write the path without ..'),
    (
        ":/etc/passwd",
        '"/etc/passwd": is not a path in the job; write one below /job or /code, or a relative one',
    ),
    (":/job/secrets/x", '"/job/secrets/x": secrets are not copied out of a job'),
    (":/job", '"/job": is the whole run directory; name something in it'),
    (
        ":out/leads",
        "out/leads: leads is a link to /etc/passwd, and no link is followed; name what it leads to",
    ),
    (":out/newest/x", "out/newest/x: newest is a link to model.bin, and no link is followed"),
    ("", "write JOB:PATH, for example train:out/model.pt"),
]


@pytest.mark.parametrize(("path", "fact"), WRONG)
def test_what_cannot_be_copied_is_told_in_a_line(
    daemon: Service, job: str, tmp_path: Path, path: str, fact: str
) -> None:
    told = daemon.runner("cp", f"{job}{path}", str(tmp_path), code=2)
    assert fact in told
    assert (told.count("\n"), list(tmp_path.iterdir())) == (1, [])


def test_a_directory_that_is_not_there_is_told_before_anything_is_copied(
    daemon: Service, job: str, tmp_path: Path
) -> None:
    told = daemon.runner("cp", f"{job}:out", str(tmp_path / "absent" / "out"), code=2)
    assert "there is no directory" in told
