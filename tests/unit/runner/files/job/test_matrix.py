"""A matrix as the job files it stands for: names, labels, values, and mistakes told where they stand."""

from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.job.load import LoadedFile, parse_job, parse_jobs
from runner.files.job.model import JobFile

WORKLOAD = "workload: {kind: causal_lm, data: stdlib}\n"


def written(matrix: str, rest: str = "", workload: str = WORKLOAD) -> LoadedFile:
    text = f"{workload}{rest}matrix:\n  values:\n{matrix}"
    return parse_jobs(text.encode(), Path("rate.yaml"))


def jobs(matrix: str, rest: str = "") -> tuple[JobFile, ...]:
    return written(matrix, rest).jobs


def complaints(matrix: str, rest: str = "") -> list[str]:
    with pytest.raises(FileError) as caught:
        written(matrix, rest)
    return [line.removeprefix("rate.yaml:") for line in caught.value.lines]


def test_each_combination_is_a_job_with_a_number_its_values_and_labels_of_them() -> None:
    found = written("    workload.steps: [10, 20]\n    seed: [1, 2]\n", "labels: {team: vision}\n")
    assert [job.name for job in found.jobs] == ["rate-1", "rate-2", "rate-3", "rate-4"]
    assert [(getattr(job.workload, "steps", 0), job.seed) for job in found.jobs] == [
        (10, 1), (10, 2), (20, 1), (20, 2)
    ]  # fmt: skip
    assert found.jobs[2].labels == {"team": "vision", "workload.steps": "20", "seed": "1"}
    assert found.values[2] == {"workload.steps": 20, "seed": 1}
    assert all(job.matrix is None for job in found.jobs)


def test_a_file_without_a_matrix_is_one_job_with_its_own_name() -> None:
    found = parse_jobs(WORKLOAD.encode(), Path("rate.yaml"))
    assert ([job.name for job in found.jobs], found.group, found.values) == (["rate"], None, ({},))


def test_reading_one_job_of_a_matrix_gives_the_first_with_the_matrix_in_it() -> None:
    job = parse_job(f"{WORKLOAD}matrix: {{values: {{seed: [7, 8]}}}}".encode(), Path("rate.yaml"))
    assert (job.name, job.seed, job.matrix is not None) == ("rate-1", 7, True)


def test_what_is_varied_need_not_be_in_the_rest_of_the_file() -> None:
    found = written(
        "    workload.data: [stdlib, ../corpus]\n    resources.gpus: [1]\n",
        workload="workload: {kind: causal_lm}\n",
    )
    assert [getattr(job.workload, "data", "") for job in found.jobs] == ["stdlib", "../corpus"]
    assert {job.resources.gpus for job in found.jobs} == {1}


def test_a_profile_and_its_switches_are_varied_together_whatever_their_order() -> None:
    found = jobs("    profile.threads: [1, 2]\n    profile: [cpu, deterministic]\n")
    assert [(job.profile.extends, job.profile.threads) for job in found] == [
        ("cpu", 1), ("deterministic", 1), ("cpu", 2), ("deterministic", 2)
    ]  # fmt: skip
    (one,) = jobs("    image.name: [auto]\n", "image: ours\n")
    assert one.image.name == "auto"


def test_variables_arrive_as_they_are_typed_and_may_have_any_name() -> None:
    found = jobs("    environment.LR: [1.10, 1e-3]\n", "environment: {A: b}\n")
    assert [job.environment for job in found] == [{"A": "b", "LR": "1.10"}, {"A": "b", "LR": "1e-3"}]
    assert [job.labels for job in found] == [{"environment.LR": "1.10"}, {"environment.LR": "1e-3"}]
    (labelled,) = jobs("    labels.run.kind: [long]\n")
    assert labelled.labels == {"run.kind": "long"}


def test_a_value_that_can_be_no_label_is_none() -> None:
    (job,) = jobs('    environment.TEXT: ["two\\nlines"]\n')
    assert (job.environment, job.labels) == ({"TEXT": "two\nlines"}, {})


@pytest.mark.parametrize("section", ["matrix: {values: ", "sweep: {metric: loss, parameters: "])
@pytest.mark.parametrize(("said", "shown"), [("", "null"), (" foo", '"foo"'), (" [a]", "a list")])
def test_labels_that_are_no_mapping_are_told_beside_values_that_would_be_labels(
    section: str, said: str, shown: str
) -> None:
    text = f"{WORKLOAD}labels:{said}\n{section}{{seed: [1, 2]}}}}\n"
    with pytest.raises(FileError, match=rf"^rate\.yaml:2:\d: labels: must be a mapping, not {shown}[^\n]*$"):
        parse_jobs(text.encode(), Path("rate.yaml"))


def test_mistakes_are_told_at_the_value_and_each_once() -> None:
    assert complaints("    seed: [1, -1, 2]\n    workload.steps: [5, 6]\n") == [
        "4:15: seed: must be a whole number from 0 to 9223372036854775807, not -1"
    ]
    assert complaints("    resources.gpus: [0, 1]\n    accelerator: [cuda]\n") == [
        '5:19: accelerator: "cuda" needs a GPU; set resources.gpus to at least 1'
    ]


def test_what_stands_elsewhere_in_the_file_is_told_there() -> None:
    assert complaints("    seed: [1, 2]\n", "qqq: 3\n") == ["2:1: qqq: unknown field"]
    assert complaints("    seed: [1, 2]\n", "name: 5\n") == [
        "2:7: name: must not be a number, because job ids are numbers; add a letter"
    ]


def test_a_matrix_has_no_schedule_beside_it() -> None:
    assert complaints("    seed: [1, 2]\n", "schedule: {cron: '@daily'}\n") == [
        "2:1: schedule: cannot be combined with a matrix; remove one of them"
    ]
    assert len(jobs("    seed: [1, 2]\n", "schedule: null\n")) == 2


@pytest.mark.parametrize(
    ("matrix", "fact"),
    [
        ("    workload: [a]\n    workload.steps: [1]\n", 'is part of "workload", which is varied too'),
        ("    accelerator.kind: [a]\n", 'cannot be varied: "accelerator" has no fields'),
        (
            "    name: [a]\n",
            "cannot be varied; each job gets the file's name and a number",
        ),
    ],
)
def test_fields_that_cannot_be_varied_are_told_at_their_names(matrix: str, fact: str) -> None:
    found = complaints(matrix, "accelerator: cpu\n")
    assert [each.endswith(fact) for each in found].count(True) == 1


def test_values_are_looked_at_beside_fields_that_cannot_be_varied() -> None:
    varied = "    name: [a, b]\n    seed: [1, x, y]\n    resources.cpus: [2, many]\n"
    assert [each.rpartition(", not ")[2] for each in complaints(varied)] == [
        "4:5: matrix.values.name: cannot be varied; each job gets the file's name and a number",
        '"x"',
        '"y"',
        '"many"',
    ]


def test_what_is_left_out_with_a_field_that_cannot_be_varied_is_not_looked_at() -> None:
    varied, excluded = "    name: [a]\n    seed: [1, x]\n", "  exclude: [{name: a, seed: x}]\n"
    found = complaints(varied + excluded)
    assert [each.endswith("a number") for each in found] == [True]


def test_the_rest_of_a_file_is_looked_at_where_no_field_of_the_matrix_can_be_varied() -> None:
    assert [each.partition(" ")[0] for each in complaints("    name: [a]\n", "colour: red\n")] == [
        "2:1:",
        "5:5:",
    ]


def test_another_name_is_that_of_the_whole_matrix() -> None:
    text = f"{WORKLOAD}name: rate\nmatrix: {{values: {{seed: [1, 2]}}}}"
    found = parse_jobs(text.encode(), Path("job.yaml"), name="other")
    assert [job.name for job in found.jobs] == ["other-1", "other-2"]


def test_fields_beside_values_are_told_where_they_belong() -> None:
    with pytest.raises(FileError) as caught:
        parse_job(f"{WORKLOAD}matrix: {{lr: [1, 2], seed: []}}".encode(), Path("m.yaml"))
    assert caught.value.lines == (
        "m.yaml:2:1: matrix: the fields that vary are below values: write values: {lr: [...]}",
    )
