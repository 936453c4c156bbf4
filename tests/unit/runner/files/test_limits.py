"""No field takes an unlimited text, and a bad file costs no more than its first hundred problems."""

from pathlib import Path

import pytest

from runner.base.textfile import MAX_PROBLEMS, FileError
from runner.files.job.load import parse_jobs
from runner.files.policy.load import MAX_CHAIN, MAX_RULES, parse_policy, read_policy
from runner.files.validation import did_you_mean

JOB = "name: n\nworkload: {kind: program, command: [echo]}\n"
LONG = "x" * 40_000


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(FileError) as caught:
        parse_jobs(text.encode(), Path("job.yaml"))
    return caught.value.lines


# --- texts


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"name: {LONG}\nworkload: {{kind: program, command: [echo]}}\n", "name"),
        (f"workload: {{kind: causal_lm, data: stdlib, include: [{LONG}]}}\n", "workload.include[0]"),
        (f"workload: {{kind: imu_stream, data: d, index: {LONG}}}\n", "workload.index"),
        (f"workload: {{kind: program, command: [echo], code: {LONG}}}\n", "workload.code"),
        (f"{JOB}profile: {LONG}\n", "profile"),
        (f"{JOB}environment: {{A: {LONG}}}\n", "environment.A"),
        (f"{JOB}labels: {{a: {LONG}}}\n", "labels.a"),
        (f"{JOB}policy: {LONG}\n", "policy"),
        (f"{JOB}stop_grace: {LONG}\n", "stop_grace"),
        (f"{JOB}queue: {{not_before: {LONG}}}\n", "queue.not_before"),
        (f"{JOB}queue: {{after: [{LONG}]}}\n", "queue.after[0]"),
        (f"{JOB}matrix: {{values: {{environment.A: [a, {LONG}]}}}}\n", 'matrix.values."environment.A"[1]'),
        (f"{JOB}matrix: {{values: {{labels.{'x' * 900}: [a]}}}}\n", "matrix.values"),
        (f"{JOB}schedule: {{cron: '{'1,' * 400}1 * * * *'}}\n", "schedule.cron"),
        (f"{JOB}schedule: {{cron: '@daily', timezone: {'A' * 65}}}\n", "schedule.timezone"),
        (f"{JOB}{'k' * 5000}: 1\n", ""),
    ],
)
def test_a_text_that_is_too_long_is_a_problem_of_its_field_whichever_it_is(text: str, field: str) -> None:
    lines = problems(text)
    assert any(field in line for line in lines)
    assert all(len(line) < 400 for line in lines)


@pytest.mark.parametrize(
    ("cron", "fact"),
    [
        ("9" * 200 + " * * * *", "is not a valid minute"),
        ("*/99999999999999999999 * * * *", "is not a valid minute"),
        ("*/61 * * * *", "its step is larger than 60"),
        ("0 */25 * * *", "its step is larger than 24"),
        ("9" * 5000 + " * * * *", "the limit is 500"),
        (",".join(["0"] * 50_000) + " * * * *", "the limit is 500"),
    ],
)
def test_a_number_or_a_list_without_bounds_in_a_cron_expression_is_refused_in_our_words(
    cron: str, fact: str
) -> None:
    lines = [line for line in problems(f"{JOB}schedule: {{cron: '{cron}'}}\n") if fact in line]
    assert lines
    assert "int()" not in lines[0]


def test_a_cron_expression_that_lists_every_minute_is_accepted() -> None:
    every = ",".join(map(str, range(60)))
    loaded = parse_jobs(f"{JOB}schedule: {{cron: '{every} * * * *'}}\n".encode(), Path("job.yaml"))
    assert len(loaded.jobs) == 1


@pytest.mark.parametrize("code", ["\x85", "\u2028", "\u2029"])
def test_a_character_that_ends_a_line_for_some_programs_only_is_refused_at_its_place(code: str) -> None:
    [line] = problems(f"name: n # a{code}seed: 7\n")
    assert line.startswith(f"job.yaml:1:12: contains U+{ord(code):04X}")


def test_such_a_character_can_be_written_as_an_escape() -> None:
    job = parse_jobs(f'{JOB}environment: {{A: "a\\u2028b"}}\n'.encode(), Path("job.yaml")).jobs[0]
    assert job.environment == {"A": "a\u2028b"}


# --- positions


def test_a_value_of_another_type_is_shown_where_it_begins_whatever_it_is() -> None:
    text = f"{JOB}resources:\n  cpus: [1]\n  gpus:\n    - 1\n  memory: {{a: 1}}\n  shm: true\n"
    assert [line.split(": ")[0] for line in problems(text)] == [
        "job.yaml:4:9",
        "job.yaml:6:5",
        "job.yaml:7:11",
        "job.yaml:8:8",
    ]


def test_a_mistake_that_only_some_jobs_of_a_matrix_have_is_told_with_their_values() -> None:
    text = (
        f"{JOB}devices: {{model: H100}}\nmatrix:\n  values:\n    resources.gpus: [1, 0]\n    seed: [1, 2]\n"
    )
    [line] = problems(text)
    assert line.startswith("job.yaml:3:1: devices: describes GPUs")
    assert line.endswith("; in the job with resources.gpus: 0, seed: 1")


def test_no_mistake_of_a_value_in_a_matrix_is_told_at_the_beginning_of_the_file() -> None:
    text = f"{JOB}matrix:\n  values:\n    resources.gpus: [0, 1]\n    workload.kind: [program, imu_stream]\n"
    assert not [line for line in problems(text) if line.startswith("job.yaml:1:1:")]


# --- the cost of a bad file


def test_validation_stops_at_the_first_hundred_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(word: str, choices: object) -> str:
        asked.append(word)
        return did_you_mean(word, choices)  # type: ignore[arg-type]

    monkeypatch.setattr("runner.files.validation.did_you_mean", counted)
    lines = problems(JOB + "".join(f"resorces{number}: 1\n" for number in range(4000)))
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1].endswith("has more than 100 problems; the others are not listed")
    assert len(asked) < 2 * MAX_PROBLEMS + 10


def test_a_matrix_of_bad_jobs_is_not_validated_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.files.job import load

    real, read = load._read, []

    def counted(*given: object) -> object:
        read.append(1)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "_read", counted)
    wrong = "".join(f"  A{number}: [1]\n" for number in range(90))
    text = f"{JOB}environment:\n{wrong}matrix: {{values: {{seed: {list(range(900))}}}}}\n"
    assert len(problems(text)) == 90
    assert len(read) < 20


def test_a_policy_stops_at_the_first_hundred_problems() -> None:
    text = "policy: 1\non_exit:\n" + "".join(f"- {{name: r{n}, when: {{a: 1}}, do: x}}\n" for n in range(299))
    with pytest.raises(FileError) as caught:
        parse_policy(text.encode(), Path("p.yaml"))
    assert len(caught.value.problems) == MAX_PROBLEMS + 1


def rules(prefix: str, count: int, first: int = 1) -> str:
    return "".join(
        f"- {{name: {prefix}{n}, when: {{exit.code: {n % 250 + 1}, attempt.n: {{ge: {n}}}}}, do: resume}}\n"
        for n in range(first, first + count)
    )


def test_a_policy_has_a_few_hundred_rules_at_most_and_the_others_are_not_parsed() -> None:
    with pytest.raises(FileError, match=rf"on_exit: has 600 rules, and the limit is {MAX_RULES}"):
        parse_policy(f"policy: 1\non_exit:\n{rules('r', 600)}".encode(), Path("p.yaml"))


def test_inherited_rules_count(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"policy: 1\non_exit:\n{rules('a', 200)}")
    top = tmp_path / "top.yaml"
    top.write_text(f"policy: 1\nextends: ./base.yaml\non_exit:\n{rules('b', 200, 1000)}")
    with pytest.raises(FileError, match="rules with those that it inherits"):
        read_policy(top)


def test_a_chain_of_policies_has_an_end(tmp_path: Path) -> None:
    last = "policy: 1\non_exit: [{name: all, when: {}, do: hold}]\n"
    for number in range(MAX_CHAIN + 1):
        text = f"policy: 1\nextends: ./p{number + 1}.yaml\n" if number < MAX_CHAIN else last
        (tmp_path / f"p{number}.yaml").write_text(text)
    assert read_policy(tmp_path / "p1.yaml").on_exit
    with pytest.raises(FileError, match="a chain of more than 8 policies"):
        read_policy(tmp_path / "p0.yaml")


def test_a_policy_that_is_a_link_to_itself_is_a_problem_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    top = tmp_path / "top.yaml"
    top.write_text("policy: 1\nextends: ./loop.yaml\n")
    with pytest.raises(FileError, match="cannot be read"):
        read_policy(top)
    with pytest.raises(FileError, match="cannot be read"):
        read_policy(tmp_path / "loop.yaml")


def test_policies_that_extend_each_other_through_links_end_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "top.yaml").write_text("policy: 1\nextends: ./again/top.yaml\n")
    with pytest.raises(FileError, match="a chain of more than 8 policies"):
        read_policy(tmp_path / "top.yaml")
