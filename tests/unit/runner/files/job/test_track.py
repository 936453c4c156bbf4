"""``track``: the trackers of a job."""

from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.job.track import find_tracking_problems

JOB = "workload: {kind: causal_lm, data: stdlib}\n"


def job(track: str) -> JobFile:
    return parse_job(f"{JOB}track: {track}\n".encode(), Path("job.yaml"))


def test_a_job_reads_back_from_its_json_as_it_was_written() -> None:
    made = job("[tensorboard, {mlflow: 'https://mlflow.lab:5000'}]")
    assert made.track.trackers == ("tensorboard", "mlflow")
    assert made.track.mlflow == "https://mlflow.lab:5000"
    written = '"track":["tensorboard",{"mlflow":"https://mlflow.lab:5000"}]'
    assert written in made.model_dump_json()
    assert JobFile.model_validate_json(made.model_dump_json()) == made
    assert job("[]").track == parse_job(JOB.encode(), Path("job.yaml")).track


@pytest.mark.parametrize(
    ("track", "fact"),
    [
        ("tensorboard", "track: must be a list, not"),
        ("{mlflow: x}", "track: must be a list, not"),
        ("[tensorbord]", 'track[0]: there is no tracker "tensorbord"; did you mean "tensorboard"?'),
        ("[wandb]", "the program logs to it itself: docs/howto/track-experiments.md"),
        ("[mlflow]", "track[0]: mlflow needs an address: {mlflow: http://HOST:PORT}"),
        ("[{tensorboard: logs}]", "track[0].tensorboard: has no settings"),
        ("[{wandb: x}]", 'track[0].wandb: there is no tracker "wandb"'),
        ("[7]", "track[0]: must be a tracker, not 7"),
        ("[tensorboard, tensorboard]", "track[1]: tensorboard is there already"),
        ("[{mlflow: 7}]", "track[0].mlflow: must be an address such as http://HOST:PORT, not 7"),
        ("[{mlflow: mlruns}]", "track[0].mlflow: must be http://HOST:PORT, https://HOST or file:///DIR"),
        ("[{mlflow: 'http://a:b@c'}]", "track[0].mlflow: has a password, and a job file is not secret"),
        ("[{mlflow: 'http://[x'}]", "track[0].mlflow: "),
    ],
)
def test_mistakes_are_told_at_their_place(track: str, fact: str) -> None:
    with pytest.raises(FileError) as raised:
        job(track)
    assert fact in raised.value.lines[0]
    assert raised.value.lines[0].startswith("job.yaml:2:")


@pytest.mark.parametrize(
    ("uri", "network", "in_container", "fact"),
    [
        ("file:///data/runs/mlflow", "none", True, None),
        ("file:///job/home/mlruns", "none", True, None),
        ("file:///srv/mlruns", "none", False, None),
        ("file:///srv/mlruns", "outbound", True, '"/srv/mlruns" is not a directory that the job can write'),
        ("http://mlflow:5000", "none", True, "the job has none; set network: outbound"),
        ("http://mlflow:5000", "outbound", True, None),
        ("http://mlflow:5000", "none", False, None),
    ],
)
def test_a_tracker_must_be_within_reach(
    uri: str, network: str, *, in_container: bool, fact: str | None
) -> None:
    track = job(f"[{{mlflow: '{uri}'}}]").track
    found = list(find_tracking_problems(track, ("/data/runs",), network, in_container=in_container))
    assert [path for path, _ in found] == ([] if fact is None else [("track",)])
    assert fact is None or fact in found[0][1]
