"""The image of a job: a name, or packages."""

from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile

JOB = "workload: {kind: program, command: [python, train.py], code: .}\n"


def job(image: str) -> JobFile:
    return parse_job(f"{JOB}image: {image}\n".encode(), Path("job.yaml"))


@pytest.mark.parametrize(
    "reference",
    [
        "python:3.12",
        "pytorch/pytorch",
        "nvcr.io/nvidia/pytorch:25.08-py3",
        "localhost:5000/lab/image:1.0_x",
        "ghcr.io/ada/her_image/of--today@sha256:" + 64 * "a",
        "127.0.0.1:5000/a/b/c:1@sha256:" + 64 * "0",
        "sha256:" + 64 * "0",
    ],
)
def test_a_text_may_be_the_reference_of_an_image(reference: str) -> None:
    assert job(f'"{reference}"').image.offered == reference
    assert job(f'{{base: "{reference}", requirements: [tqdm]}}').image.offered == reference


def test_a_text_is_the_name_of_an_image_as_before() -> None:
    found = job("lab").image
    assert (found.name, found.offered, found.has_packages) == ("lab", "lab", False)


def test_requirements_are_a_file_or_a_list() -> None:
    assert job("{requirements: requirements.txt}").image.requirements == "requirements.txt"
    found = job("{requirements: [tqdm, 'transformers>=5'], base: lab}").image
    assert found.requirements == ("tqdm", "transformers>=5")
    assert (found.offered, found.has_packages) == ("lab", True)


def test_a_job_reads_back_from_its_json() -> None:
    made = job("{requirements: [tqdm], system: [libsndfile1, ffmpeg=7:5.1]}")
    assert JobFile.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("image", "fact"),
    [
        ("a b/c", "image: must be a name, or a reference such as nvcr.io/nvidia/pytorch:25.08-py3, not"),
        ("Lab/Image:1", "image: must be a name, or a reference"),
        ("'lab:'", "image: must be a name, or a reference"),
        ("lab@sha256:1", "image: must be a name, or a reference"),
        ("--privileged/x", "image: must be a name, or a reference"),
        ("http://x/lab", "image: must be a name, or a reference"),
        ("{pull: always}", 'image.pull: "auto" is never pulled; it goes with an image such as python:3.12'),
        ("{name: lab, pull: never}", 'image.pull: "lab" is never pulled'),
        ("{name: 'lab:1', pull: often}", "image.pull: must be"),
        ("{requirements: []}", "image.requirements: must have from 1 to 1000 entries, not 0"),
        ("{requirements: 7}", "image.requirements: must be a file or a list such as"),
        ("{requirements: [7]}", "image.requirements[0]: must be a package such as tqdm>=4, not 7"),
        ('{requirements: ["a\\nb"]}', "image.requirements[0]: "),
        ("{requirements: [tqdm], name: lab}", 'has no name; write base: "lab"'),
        (
            "{system: libsndfile1}",
            'image.system: must be a list, or null, not "libsndfile1"; did you mean ["libsndfile1"]?',
        ),
        ("{system: []}", "image.system: must have at least 1 entry"),
        ("{system: [--purge]}", "image.system[0]: must be a Debian package such as libsndfile1"),
        ("{system: [libx], name: lab}", 'has no name; write base: "lab"'),
        ("{requirement: [tqdm]}", 'did you mean "requirements"?'),
    ],
)
def test_mistakes_are_told_at_their_place(image: str, fact: str) -> None:
    with pytest.raises(FileError) as raised:
        job(image)
    assert fact in raised.value.lines[0]
    assert raised.value.lines[0].startswith("job.yaml:2:")
