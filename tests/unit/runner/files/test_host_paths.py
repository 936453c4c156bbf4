"""Paths of this host in the command of a container."""

from pathlib import Path

import pytest

from runner.files.host_paths import find_host_paths
from runner.files.job.load import parse_job
from runner.files.revision import CodeReference, Revision


def told(*command: str) -> list[str]:
    text = (
        f"workload: {{kind: program, command: {list(command)}, code: .}}\n"
        "mounts: [{source: /nfs/sets/mnist, target: /data/mnist}]\n"
    )
    job = parse_job(text.encode(), Path("job.yaml"))
    code = CodeReference(snapshot="5e6f", files=1, bytes=2)
    path = "/home/ada/project/job.yaml"
    revision = Revision(job=job, path=path, accelerator="cpu", uid=1, gid=1, groups=(), user="ada", code=code)
    return [*find_host_paths(revision)]


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("/home/ada/project/train.py", "the job begins in its code: write ./train.py"),
        ("--out=/home/ada/project/out", "the job begins in its code: write ./out"),
        ("/nfs/sets/mnist/train.bin", "the job has it at /data/mnist/train.bin"),
        (
            "--data=/nfs/sets/other",
            "of which a job sees its mounts alone: --mount /nfs/sets/other:/data/other",
        ),
        ("/scratch/ada/a.csv", "--mount /scratch/ada:/data/ada"),
        ("python x.py --in /mnt/big > log", "--mount /mnt/big:/data/big"),
    ],
)
def test_a_path_of_this_host_is_told_with_what_a_container_has_in_its_place(word: str, what: str) -> None:
    [line] = told("python", word)
    assert line.startswith("workload.command[1]: /")
    assert what in line


@pytest.mark.parametrize(
    "word",
    [
        *(
            "/usr/bin/python",
            "/data/mnist/x",
            "/data/other",
            "/code/train.py",
            "/job/home/x",
            "/tmp/x",
            "/",
            "/home",
        ),
        *(
            "https://host/home/ada/x",
            "a/home/b",
            "s3://home/x/y",
            "x/mnt/y",
            "1/mnt/2",
            "~/home/x",
            "./mnt/x",
        ),
    ],
)
def test_other_words_are_no_paths_of_this_host(word: str) -> None:
    assert told("python", word) == []


def test_a_path_is_told_once_and_few_are_told() -> None:
    assert len(told("cat", "/mnt/a", "/mnt/a", "--x=/mnt/a")) == 1
    assert len(told("cat", *(f"/mnt/{number}" for number in range(9)))) == 3
