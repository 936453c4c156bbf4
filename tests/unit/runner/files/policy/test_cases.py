from pathlib import Path
from textwrap import dedent

import pytest

from runner.base.textfile import MAX_PROBLEMS, FileError
from runner.files.policy.cases import Case, parse_cases, read_cases, run_case
from runner.files.policy.load import load_named_policy

FILE = Path("mine.cases.yaml")


def cases(text: str) -> tuple[Case, ...]:
    return parse_cases(dedent(text).encode(), FILE)


def differences(expected: str, facts: str = "{exit.class: success}") -> list[str]:
    """Return what differs from what is expected of the default policy."""
    (one,) = cases(case(facts, expected))
    return list(run_case(load_named_policy("default"), one))


@pytest.mark.parametrize(
    "expected",
    [
        "{do: finish}",
        "{do: finish, rule: done, with: {}, from: nothing, charged: true}",
        "{do: finish, limit: none, advice: [], says: completed}",
        "{do: finish, nearly: cancelled}",
    ],
)
def test_what_is_as_expected_says_nothing(expected: str) -> None:
    assert differences(expected, "{exit.class: success, cause: completed}") == []


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{do: hold}", "do should be hold, but is finish: finish: success"),
        ("{do: finish, rule: other}", "rule should be other, but is done: finish: success"),
        ("{do: finish, says: nonsense}", 'should say "nonsense", but says "finish: success"'),
        (
            "{do: finish, with: {workers: halve}}",
            "with should be workers halve, but is nothing: finish: success",
        ),
        ("{do: finish, charged: false}", "charged should be false, but is true: finish: success"),
        ("{do: finish, limit: storm}", "limit should be storm, but is none: finish: success"),
        ("{do: finish, advice: [x]}", "advice should be x, but is none: finish: success"),
        ("{do: finish, nearly: done}", 'rule "done" should not match, but does'),
        ("{do: finish, nearly: don}", 'there is no rule "don"; did you mean "done"?'),
    ],
)
def test_every_difference_is_told(expected: str, said: str) -> None:
    assert differences(expected) == [said]


def test_a_fact_of_another_moment_says_how_a_case_is_at_that_moment() -> None:
    with pytest.raises(FileError) as caught:
        cases(case("{progress.idle_s: 9}", "{do: stop}"))
    assert 'it is a fact of on_watch; write "at: watch" beside "facts"' in str(caught.value)


def test_a_step_to_begin_with_is_named_by_its_number() -> None:
    (one,) = cases("cases: [{name: a, facts: {cause: killed}, expect: {do: resume, from: newest}}]")
    assert list(run_case(load_named_policy("default"), one)) == []


def test_what_was_before_goes_through_the_same_policy() -> None:
    text = """\
        cases:
          - name: halved, and halved again
            before:
              - {facts: {oom.device: true, phase: train, progress.advanced: false}, lasted: 1m, times: 2}
              - {at: change, facts: {diff.class: A}}
            facts: {oom.device: true, phase: train, progress.advanced: false}
            expect: {do: resume, rule: oom-train}
        """
    (one,) = cases(text)
    assert [told.times for told in one.before] == [2, 1]
    assert list(run_case(load_named_policy("default"), one)) == []


def case(facts: str = "{}", expect: str = "{do: hold}", more: str = "") -> str:
    return f"cases: [{{name: a, facts: {facts}, expect: {expect}{more}}}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("case: []\n", 'mine.cases.yaml:1:1: case: unknown field; did you mean "cases"?'),
        ("cases: []\n", "mine.cases.yaml:1:1: cases: is required: a list of cases"),
        ("cases: [{}]\n", "cases[0]: name is required"),
        (case(expect="{}"), "cases[0].expect: do is required"),
        (case(expect="{rule: x}"), "cases[0].expect: do is required"),
        (case(expect="{do: fly}"), 'cases[0].expect.do: cannot be "fly"'),
        (case(expect="{do: hold, limit: sky}"), 'expect.limit: cannot be "sky"'),
        (case(expect="{do: hold, charged: x}"), "expect.charged: must be true or false"),
        (case(expect="{do: hold, with: {x: y}}"), "expect.with.x: unknown adjustment"),
        (case(more=", at: noon"), 'cases[0].at: cannot be "noon"'),
        (case("{nan: 1}"), "facts.nan: must be true or false, not 1"),
        (case("{device.xid: [x]}"), '"device.xid"[0]: must be a whole number'),
        (case("{moon: 1}"), "facts.moon: there is no such fact"),
        (case("{attempt.n: 1}"), 'is computed from earlier attempts; describe them in "before"'),
        (case(more=", before: [{times: 0}]"), "before[0].times: must be a whole number"),
    ],
)
def test_a_case_that_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(FileError) as caught:
        cases(text)
    assert any(said in line for line in caught.value.lines), caught.value.lines


def test_of_very_many_problems_the_first_are_told() -> None:
    with pytest.raises(FileError) as caught:
        cases(f"cases: [{', '.join(['{}'] * 2 * MAX_PROBLEMS)}]\n")
    assert len(caught.value.lines) == MAX_PROBLEMS + 1


def test_a_difference_has_the_place_of_its_case() -> None:
    (one,) = cases("cases:\n  - name: a case\n    facts: {}\n    expect: {do: hold}\n")
    assert one.problem("differs").line(FILE) == "mine.cases.yaml:2:5: a case: differs"


def test_cases_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.cases.yaml"
    path.write_text("cases: [{name: a, facts: {}, expect: {do: hold}}]\n")
    assert [case.name for case in read_cases(path)] == ["a"]
