import json
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.base.textfile import MAX_LINES_BYTES, FileError
from runner.core.scheduler.snapshot import GIB, Dependency, JobArray
from runner.services.simulation.run import SyntheticTrace, synthetic
from runner.services.simulation.trace import FIELDS, read, write

HEAD = "user,submit_s,duration_s,gpus"


def trace(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(FileError) as caught:
        read(path)
    return [line.removeprefix(f"{path}:") for line in caught.value.lines]


def test_a_short_line_is_a_job_with_defaults(tmp_path: Path) -> None:
    (job,) = read(trace(tmp_path, f"{HEAD}\nada,10,60.5,2\n"))
    assert (job.job_id, job.owner, job.submitted_s, job.duration_s, job.request.gpus) == (
        "line-2",
        "ada",
        10,
        60.5,
        2,
    )
    assert (job.time_limit_s, job.group, job.priority_class, job.priority, job.array) == (
        None,
        "",
        "normal",
        50,
        None,
    )


def test_every_field_is_read_from_csv_and_from_json(tmp_path: Path) -> None:
    cells = {
        "job": "b", "user": "ada", "submit_s": 5, "duration_s": 60, "gpus": 2, "limit_s": 90, "group": "lab",
        "class": "urgent", "priority": 70, "cpus": 3.5, "memory_gib": 8, "device_gib": 40, "linked": True,
        "after": "a", "sweep": "s", "at_a_time": 2, "saves": False, "save_s": 5, "restart_s": 7,
        "checkpoint_every_s": 600, "progress": True,
    }  # fmt: skip
    assert set(cells) == set(FIELDS)
    first = {"job": "a", "user": "ada", "submit_s": 0, "duration_s": 1, "gpus": 0}
    lines = [json.dumps(first), "", json.dumps(cells)]
    path = trace(tmp_path, "\n".join(lines))
    _, job = read(path)
    assert (job.time_limit_s, job.group, job.priority_class, job.priority) == (90, "lab", "urgent", 70)
    assert (job.request.cpus, job.request.memory_bytes, job.request.device_bytes) == (3.5, 8 * GIB, 40 * GIB)
    assert (job.request.linked, job.dependencies, job.array) == (True, (Dependency("a"),), JobArray("s", 2))
    assert (job.saves, job.save_s, job.restart_s, job.checkpoint_every_s) == (False, 5, 7, 600)
    assert job.progress
    write(path, read(path))
    assert read(path)[1] == job


def test_jobs_come_by_time_of_submission(tmp_path: Path) -> None:
    found = read(trace(tmp_path, f"{HEAD}\nada,10,1,1\nbob,5,1,1\n"))
    assert [job.owner for job in found] == ["bob", "ada"]
    assert found[0].request is found[1].request


def test_all_problems_come_at_once_with_their_lines(tmp_path: Path) -> None:
    text = f"{HEAD},limit_s\nada,x,60,1,\nbob,0,-1,1,0\n,0,1,1,\neve,0,inf,1,\n"
    assert problems(trace(tmp_path, text)) == [
        '2:1: submit_s: must be a number of at least 0, not "x"',
        '3:1: duration_s: must be a number of at least 0.001, not "-1"',
        '3:1: limit_s: must be a number of at least 0.001, not "0"',
        "4:1: user: is required",
        '5:1: duration_s: must be a number of at least 0.001, not "inf"',
    ]


def test_unknown_and_missing_columns_are_told(tmp_path: Path) -> None:
    assert problems(trace(tmp_path, "user,submit_s,gpu\n")) == [
        "1:1: duration_s: column is missing",
        "1:1: gpu: unknown column",
        "1:1: gpus: column is missing",
    ]
    line = json.dumps({"user": "a", "submit_s": 0, "duration_s": 1, "gpus": 1, "gpu": 2})
    assert problems(trace(tmp_path, line)) == ["1:1: gpu: unknown field"]


def test_null_is_as_good_as_nothing(tmp_path: Path) -> None:
    cells = {"user": "a", "submit_s": 0, "duration_s": 1, "gpus": 1, "cpus": None, "saves": None}
    [job] = read(trace(tmp_path, json.dumps(cells)))
    assert (job.request.cpus, job.saves) == (1.0, True)
    assert problems(trace(tmp_path, json.dumps({**cells, "gpus": None}))) == ["1:1: gpus: is required"]


@pytest.mark.parametrize("line", ['{"user": ', "[1]"])
def test_what_is_no_json_object_is_told(tmp_path: Path, line: str) -> None:
    good = json.dumps({"user": "a", "submit_s": 0, "duration_s": 1, "gpus": 1})
    assert problems(trace(tmp_path, f"{good}\n{line}\n")) == ["2:1: is not a JSON object"]


def test_jobs_of_one_name_and_jobs_that_are_not_there_are_told(tmp_path: Path) -> None:
    text = f"job,{HEAD},after\na,ada,0,1,1,\na,ada,0,1,1,x a\n"
    assert problems(trace(tmp_path, text)) == [
        '3:1: after: there is no job "x"',
        '3:1: job: "a" is on line 2 too',
    ]


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    assert problems(tmp_path / "none")[0].endswith("cannot be read: No such file or directory")
    assert problems(trace(tmp_path, f"{HEAD}\n"))[0].endswith("holds no job")
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe\x00")
    assert problems(tmp_path / "trace.csv")[0].endswith("is not UTF-8 text")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_LINES_BYTES + 1)
    assert problems(tmp_path / "large")[0].endswith("larger than 512 MiB, so not a trace")


def test_a_made_up_trace_survives_being_written(tmp_path: Path) -> None:
    made = synthetic(3, SyntheticTrace(jobs=50))
    write(tmp_path / "t.csv", made)
    assert read(tmp_path / "t.csv") == made
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "no" / "t.csv", made)


def test_what_is_no_trace_at_all_is_one_line(tmp_path: Path) -> None:
    line = json.dumps({"job": "1", "attempt": 1, "moment": "exit", "at": "2030-01-01"})
    said = 'has unknown field "attempt"; docs/explanation/simulation.md has the fields'
    (told,) = problems(trace(tmp_path, f"{line}\n" * 50))
    assert told.endswith(f"is not a trace: line 1 {said}")
    (told,) = problems(trace(tmp_path, "name: x\nworkload: {}\n"))
    assert told.endswith(
        'is not a trace: line 1 has unknown field "name: x"; docs/explanation/simulation.md has the fields'
    )


def test_one_line_that_is_a_job_makes_the_others_mistakes_of_a_trace(tmp_path: Path) -> None:
    good = json.dumps({"user": "a", "submit_s": 0, "duration_s": 1, "gpus": 1})
    assert len(problems(trace(tmp_path, f'{good}\n{{"who": 1}}\n'))) == 5


def test_a_line_with_more_cells_than_the_head_is_told(tmp_path: Path) -> None:
    (told,) = problems(trace(tmp_path, f"{HEAD}\nada,0,1,1,9,9\n"))
    assert told == "2:1: more cells than columns: unknown field"


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("class", "urgnt", '"urgnt" is none of idle, normal, interactive, urgent; did you mean "urgent"?'),
        ("class", "Urgent", '"Urgent" is none of idle, normal, interactive, urgent; did you mean "urgent"?'),
        ("linked", "maybe", '"maybe" is none of true, yes, 1, false, no, 0'),
        ("priority", "101", 'must be 100 at most, not "101"'),
        ("priority", "5.5", 'must be a whole number, not "5.5"'),
        ("at_a_time", "1.5", 'must be a whole number, not "1.5"'),
    ],
)
def test_a_value_that_would_be_taken_for_another_is_refused(
    tmp_path: Path, column: str, cell: str, said: str
) -> None:
    wrong = trace(tmp_path, f"{HEAD},{column}\nada,0,10,1,{cell}\n")
    assert problems(wrong) == [f"2:1: {column}: {said}"]


@pytest.mark.parametrize("cell", ["TRUE", "1", "no"])
def test_yes_and_no_are_read_however_they_are_written(tmp_path: Path, cell: str) -> None:
    [job] = read(trace(tmp_path, f"{HEAD},linked\nada,0,10,1,{cell}\n"))
    assert job.request.linked is (cell != "no")


def test_devices_come_whole(tmp_path: Path) -> None:
    assert problems(trace(tmp_path, f"{HEAD}\nada,0,10,1.5\n")) == [
        '2:1: gpus: must be a whole number, not "1.5"'
    ]


def test_jobs_that_wait_for_one_another_are_refused_with_the_circle(tmp_path: Path) -> None:
    text = f"{HEAD},job,after\nada,0,10,1,a,\nada,0,10,1,b,d\nada,0,10,1,c,b\nada,0,10,1,d,c\n"
    [line] = problems(trace(tmp_path, text))
    assert line == "3:1: after: circular dependency: b waits for d waits for c waits for b"
