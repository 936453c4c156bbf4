"""Contents of a policy file, and the messages about a wrong one."""

import re
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.textfile import FileError
from runner.core.policy.conditions import ALWAYS, AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import (
    Adjustment,
    Backoff,
    Ceilings,
    Economics,
    Mode,
    OnExhausted,
    Policy,
    RestartRate,
    Rule,
    Setting,
    Source,
    StartPoint,
    Verb,
)
from runner.files.policy.job_policy import deserialize_policy, serialize_policy
from runner.files.policy.load import SECTIONS, PolicySource, load_named_policy, parse_policy, read_policy

TAIL = "on_exit: [{name: other, when: {}, do: resume}]\n"
FILE = Path("mine.yaml")
BAD = Path(__file__).parent / "bad_policies"


def rule(text: str, section: str = "on_exit") -> Rule:
    """Return the one rule of a policy."""
    rest = "" if section == "on_exit" else TAIL
    policy = parse_policy(f"policy: 1\n{section}: [{text}]\n{rest}".encode(), FILE)
    return getattr(policy, section)[0]


def when(text: str, section: str = "on_exit") -> Condition:
    verb = {"on_exit": "hold", "on_watch": "advise", "on_change": "keep"}[section]
    return rule(f"{{name: a, when: {text}, do: {verb}}}", section).when


def problems(text: str, shelf: PolicySource | None = None, path: Path = FILE) -> list[str]:
    with pytest.raises(FileError) as caught:
        parse_policy(dedent(text).encode(), path, shelf)
    return [line.removeprefix(f"{path}:") for line in caught.value.lines]


# --- What it says


def test_a_policy_without_settings_has_the_usual_ones() -> None:
    policy = parse_policy(f"policy: 1\n{TAIL}".encode(), FILE)
    assert policy == Policy("mine", Ceilings(), Backoff(), Economics(), (Rule("other", Verb.RESUME),))


def test_every_setting_has_its_place() -> None:
    text = """\
        policy: 1
        name: all
        ceilings: {attempts: 9, wall: 2h, storm: {attempts: 4, within: 10m}, no_progress: 2}
        backoff: {first: 1s, factor: 3, max: 1m, jitter: 0}
        economics: {hurdle: 1.5, max_swaps: 0, rate_window: 1m}
        on_exit:
          - name: all
            when: {nan: true}
            do: resume
            from: {step: 40}
            with: {micro_batch: halve, precision: safer, compile: off, profile: plain}
            charge: false
            tries: 2
            spent: next
            mode: log
            why: because
        """
    policy = parse_policy(dedent(text).encode(), FILE)
    assert policy.ceilings == Ceilings(9, timedelta(hours=2), RestartRate(4, timedelta(minutes=10)), 2)
    assert policy.backoff == Backoff(timedelta(seconds=1), 3.0, timedelta(minutes=1), 0.0)
    assert policy.economics == Economics(1.5, max_swaps=0, rate_window=timedelta(minutes=1))
    assert policy.on_exit == (
        Rule(
            "all",
            Verb.RESUME,
            Comparison("nan", Operator.IS, operand=True),
            StartPoint(Source.STEP, 40),
            (
                Adjustment(Setting.MICRO_BATCH, "halve"),
                Adjustment(Setting.PRECISION, "safer"),
                Adjustment(Setting.COMPILE, "off"),
                Adjustment(Setting.PROFILE, "plain"),
            ),
            charge=False,
            tries=2,
            spent=OnExhausted.NEXT,
            mode=Mode.LOG,
            why="because",
        ),
    )


NAN = Comparison("nan", Operator.IS, operand=True)
CODE = Comparison("exit.code", Operator.IN, (78, 93))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("{}", ALWAYS),
        ("{nan: true}", NAN),
        ("{nan: true, exit.code: {in: [78, 93]}}", AllOf((NAN, CODE))),
        ("{all: [{nan: true}, {exit.code: {in: [78, 93]}}]}", AllOf((NAN, CODE))),
        ("{any: [{nan: true}, {exit.code: {in: [78, 93]}}]}", AnyOf((NAN, CODE))),
        ("{any: [{nan: true}]}", NAN),
        ("{not: {nan: true}}", Not(NAN)),
        ("{nan: {not: true}}", Not(NAN)),
        ("{exit.code: {not: {in: [78, 93]}}}", Not(CODE)),
        (
            "{data_wait: {ge: 0.5, lt: 1}}",
            AllOf((Comparison("data_wait", Operator.GE, 0.5), Comparison("data_wait", Operator.LT, 1))),
        ),
        ("{device.xid: 79}", Comparison("device.xid", Operator.IS, 79)),
        ("{root: {in: [a, b]}}", Comparison("root", Operator.IN, ("a", "b"))),
    ],
)
def test_a_condition_is_what_is_written(text: str, condition: Condition) -> None:
    assert when(text) == condition


def test_rules_about_what_runs_may_wait_for_a_rule_of_their_own_file() -> None:
    text = """\
        policy: 1
        on_watch: [{name: mine, when: {phase: eval}, do: stop}]
        on_exit: [{name: a, when: {killed_by: {in: [watch/mine, deadline]}}, do: hold}]
        """
    assert parse_policy(dedent(text).encode(), FILE).on_watch[0].do is Verb.STOP


# --- What is not right


def bad(name: str) -> list[tuple[str, str]]:
    """Return (policy, what is said about it) of everything in one file of bad policies."""
    text = (BAD / f"{name}.txt").read_text(encoding="utf-8").split("\n\n", maxsplit=1)[1]
    return [(policy, said) for policy, said in re.findall(r"((?:.*\n)*?)-> (.*)\n", text)]


@pytest.mark.parametrize(
    ("text", "said"), [each for path in sorted(BAD.glob("*.txt")) for each in bad(path.stem)]
)
def test_what_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    lines = problems(text.lstrip("\n"))
    assert any(said in line for line in lines), lines


def test_there_are_enough_bad_policies() -> None:
    assert sum(len(bad(path.stem)) for path in BAD.glob("*.txt")) > 80


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("mine.yaml", "mine"),
        ("My_Policy.yaml", "my-policy"),
        ("train.v2.yml", "train-v2"),
        ("2fast.yaml", "policy-2fast"),
        ("ä.yaml", "policy"),
        (f"{'long-' * 20}.yaml", "long-long-long-long-long-long-long-long-l"),
    ],
)
def test_a_file_of_any_name_is_a_policy_that_can_be_stored(file: str, name: str) -> None:
    policy = parse_policy(b"policy: 1\non_exit: [{name: a, when: {}, do: hold}]\n", Path(file))
    assert policy.name == name
    assert deserialize_policy(serialize_policy(policy)) == policy


def test_an_exception_is_compared_without_its_module() -> None:
    when = "{exit.exception: {in: [torch.cuda.OutOfMemoryError, KeyError]}}"
    policy = parse_policy(b"policy: 1\non_exit: [{name: a, when: %b, do: hold}]\n" % when.encode(), Path("a"))
    assert policy.on_exit[0].when == Comparison(
        "exit.exception", Operator.IN, ("OutOfMemoryError", "KeyError")
    )


def test_a_rehearsal_may_have_no_condition() -> None:
    assert rule("{name: a, when: {}, do: stop, mode: log}", "on_watch").mode is Mode.LOG


def test_all_problems_are_told_at_once_and_in_order() -> None:
    text = """\
        policy: 1
        ceilings: {atempts: 3}
        on_exit:
          - {name: a, when: {phase: trian}, do: hold}
          - {name: b, when: {nan: maybe}, do: stop}
          - {name: b, do: hold}
        """
    assert [line.split(":")[0] for line in problems(text)] == ["2", "4", "5", "5", "6"]


# --- What it extends


def shelf_with(tmp_path: Path, **files: str) -> PolicySource:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(f"policy: 1\n{dedent(text)}")
    return PolicySource(tmp_path)


PARENT = """\
    ceilings: {attempts: 10, wall: 2h, storm: {attempts: 4, within: 10m}, no_progress: 2}
    backoff: {first: 1s, max: 1m}
    on_exit:
      - {name: mine, when: {nan: true}, do: hold}
      - {name: other, when: {}, do: resume}
    """


def test_own_rules_come_first_and_replace_those_of_the_same_name(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, parent=PARENT)
    text = """\
        policy: 1
        extends: parent
        on_exit:
          - {name: new, when: {oom.host: true}, do: hold}
          - {name: mine, when: {nan: true}, do: give_up}
        """
    policy = parse_policy(dedent(text).encode(), tmp_path / "child.yaml", shelf)
    assert [(each.name, each.do) for each in policy.on_exit] == [
        ("new", Verb.HOLD),
        ("mine", Verb.GIVE_UP),
        ("other", Verb.RESUME),
    ]
    assert policy.name == "child"
    assert policy.ceilings == read_policy(tmp_path / "parent.yaml", shelf).ceilings


def test_single_settings_are_taken_over(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, parent=PARENT)
    text = "policy: 1\nextends: parent\nceilings: {attempts: 5}\nbackoff: {jitter: 0}\n"
    policy = parse_policy(text.encode(), tmp_path / "child.yaml", shelf)
    assert policy.ceilings == Ceilings(5, timedelta(hours=2), RestartRate(4, timedelta(minutes=10)), 2)
    assert policy.backoff == Backoff(timedelta(seconds=1), 2.0, timedelta(minutes=1), 0.0)


@pytest.mark.parametrize(
    ("ceilings", "said"),
    [
        (
            "{attempts: 11}",
            'ceilings.attempts: is looser than in "parent" (10); a ceiling can only be tightened',
        ),
        ("{wall: 3h}", 'ceilings.wall: is looser than in "parent" (2h); a ceiling can only be tightened'),
        ("{wall: null}", 'ceilings.wall: is looser than in "parent" (2h); a ceiling can only be tightened'),
        (
            "{storm: {attempts: 5}}",
            'ceilings.storm: is looser than in "parent" (4 within 10m); a ceiling can',
        ),
        ("{storm: {within: 5m}}", 'ceilings.storm: is looser than in "parent" (4 within 10m); a ceiling can'),
        (
            "{no_progress: 3}",
            'ceilings.no_progress: is looser than in "parent" (2); a ceiling can only be tightened',
        ),
    ],
)
def test_a_ceiling_cannot_be_raised(tmp_path: Path, ceilings: str, said: str) -> None:
    shelf = shelf_with(tmp_path, parent=PARENT)
    lines = problems(f"policy: 1\nextends: parent\nceilings: {ceilings}\n", shelf)
    assert any(said in line for line in lines), lines


def test_a_ceiling_that_the_parent_lacks_may_be_added(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, parent=f"ceilings: {{wall: null}}\n{TAIL}")
    assert read_policy(tmp_path / "parent.yaml", shelf).ceilings.wall is None
    text = "policy: 1\nextends: parent\nceilings: {wall: 1h}\n"
    assert parse_policy(text.encode(), FILE, shelf).ceilings.wall == timedelta(hours=1)


@settings(max_examples=30)
@given(
    st.integers(1, 1000),
    st.integers(1, 100),
    st.integers(1, 600),
    st.integers(1, 1000),
    st.none() | st.integers(1, 500),
)
def test_no_extension_is_looser_than_what_it_extends(
    attempts: int, starts: int, within: int, no_progress: int, wall: int | None
) -> None:
    parent = load_named_policy("default").ceilings
    storm = f"{{attempts: {starts}, within: {within}m}}"
    hours = "null" if wall is None else f"{wall * 4}h"
    said = f"attempts: {attempts}, storm: {storm}, no_progress: {no_progress}, wall: {hours}"
    text = f"policy: 1\nextends: default\nceilings: {{{said}}}\n"
    try:
        own = parse_policy(text.encode(), FILE).ceilings
    except FileError as error:
        assert "is looser" in str(error) or "never reached" in str(error)  # noqa: PT017 - one way of two
        return
    assert own.attempts <= parent.attempts
    assert own.no_progress <= parent.no_progress
    assert own.storm.attempts <= parent.storm.attempts
    assert own.storm.within >= parent.storm.within
    assert own.wall is not None
    assert parent.wall is not None
    assert own.wall <= parent.wall


def test_what_extends_itself_is_refused(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, a="extends: b\n", b="extends: c\n", c="extends: b\n")
    with pytest.raises(FileError, match="extends itself: a -> b -> c -> b"):
        read_policy(tmp_path / "a.yaml", shelf)


def test_a_policy_that_does_not_exist_is_guessed_at(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, parent=PARENT)
    assert '2:10: extends: there is no policy "parnt"; did you mean "parent"?' in problems(
        "policy: 1\nextends: parnt\n", shelf
    )
    assert '2:10: extends: there is no policy "x"; choose one of parent' in problems(
        "policy: 1\nextends: x\n", shelf
    )


def test_a_policy_may_lie_beside_the_one_that_extends_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"policy: 1\n{TAIL}")
    (tmp_path / "mine.yaml").write_text("policy: 1\nextends: ./base.yaml\n")
    assert [each.name for each in read_policy(tmp_path / "mine.yaml").on_exit] == ["other"]


def test_whoever_reads_for_others_reads_no_paths(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"policy: 1\n{TAIL}")
    lines = problems("policy: 1\nextends: base.yaml\n", PolicySource(paths=False), tmp_path / "mine.yaml")
    assert 'extends: there is no policy "base.yaml"' in lines[0]


def test_what_is_wrong_with_the_parent_is_told_in_one_line(tmp_path: Path) -> None:
    shelf = shelf_with(tmp_path, parent="ceilings: {atempts: 1}\non_ext: []\n")
    (line, *_) = problems("policy: 1\nextends: parent\n", shelf)
    assert f"extends: is not right: {tmp_path}/parent.yaml:2:12: ceilings.atempts" in line
    assert line.endswith("(and 1 more)")
    (only,) = problems(f"policy: 1\nextends: nowhere/a.yaml\n{TAIL}", shelf)
    assert "extends: is not right: nowhere/a.yaml: no such file" in only


def test_a_name_must_be_text(tmp_path: Path) -> None:
    assert "2:10: extends: must be one line of text, at most 500 characters, not 7" in problems(
        f"policy: 1\nextends: 7\n{TAIL}", PolicySource(tmp_path)
    )


# --- Finding


def test_every_shipped_policy_can_be_read_by_its_name() -> None:
    names = PolicySource().names()
    assert names == ("default", "first-steps", "patient", "restart-if-epoch-only-checkpoints", "strict")
    assert [load_named_policy(name).name for name in names] == list(names)


def test_a_policy_of_an_unknown_name_is_guessed_at() -> None:
    with pytest.raises(FileError, match='defualt: there is no policy of this name; did you mean "default"'):
        load_named_policy("defualt")


def test_a_file_that_does_not_exist_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(FileError, match='no such file; "runner policy show" prints one to begin with'):
        read_policy(tmp_path / "none.yaml")


def test_a_directory_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a directory, not a policy"):
        read_policy(tmp_path)


def test_every_moment_has_a_section() -> None:
    assert set(SECTIONS) == set(DecisionPoint)


def test_a_ceiling_that_is_no_duration_is_not_told_to_be_looser_too() -> None:
    text = b"policy: 1\nextends: default\nceilings: {wall: 30 days}\n"
    with pytest.raises(FileError) as caught:
        parse_policy(text, Path("mine.yaml"))
    (line,) = caught.value.lines
    assert line.startswith("mine.yaml:3:18: ceilings.wall: must be a duration")
