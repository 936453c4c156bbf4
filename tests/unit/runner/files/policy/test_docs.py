"""The pages about policies, compared with the code; every piece of YAML on them is right."""

import re
from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.core.policy.decision import Guard
from runner.core.policy.digest import compute_digest
from runner.core.policy.model import SETTING_CHANGES, VERBS, Mode, OnExhausted, Setting, Source
from runner.files.policy.cases import parse_cases, run_case
from runner.files.policy.load import SHIPPED, PolicySource, load_named_policy, parse_policy

DOCS = Path(__file__).parents[5] / "docs"
PAGE = (DOCS / "reference/policy.md").read_text(encoding="utf-8")
HOWTO = (DOCS / "howto/write-a-policy.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str = "yaml") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def test_the_page_names_every_limit_verb_word_and_shipped_policy() -> None:
    words = [
        *Guard,
        *(verb for verbs in VERBS.values() for verb in verbs),
        *OnExhausted,
        *Setting,
        *set(SETTING_CHANGES.values()),
    ]
    words += [*Source, *PolicySource().names()]
    assert [word for word in words if not re.search(rf"[`: {{]{re.escape(word)}[`: ,|)}}]", PAGE)] == []
    assert f"mode: {Mode.LOG}" in PAGE


def test_the_policy_on_the_page_is_right() -> None:
    (block,) = blocks(PAGE)
    policy = parse_policy(block.encode(), Path("mine.yaml"))
    assert policy.ceilings == load_named_policy("default").ceilings
    assert policy.on_exit[0].name == "too-large"


def test_every_policy_of_the_how_to_is_right() -> None:
    policies = [block for block in blocks(HOWTO) if block.startswith("policy:")]
    assert len(policies) >= 3
    assert all(parse_policy(block.encode(), Path("mine.yaml")) for block in policies)


def test_the_digest_of_the_how_to_is_that_of_its_first_policy() -> None:
    first = next(block for block in blocks(HOWTO) if block.startswith("policy:"))
    assert f"digest {compute_digest(parse_policy(first.encode(), Path('mine.yaml')))}" in HOWTO


def test_the_how_to_ends_with_the_shipped_first_steps() -> None:
    last = [block for block in blocks(HOWTO) if block.startswith("policy:")][-1]
    shipped = load_named_policy("first-steps")
    written = parse_policy(last.encode(), Path("first-steps.yaml"))
    assert written == shipped


def test_the_cases_of_the_how_to_are_as_expected() -> None:
    cases = [block for block in blocks(HOWTO) if block.startswith("cases:")]
    assert cases
    for block in cases:
        for case in parse_cases(block.encode(), Path("mine.cases.yaml")):
            assert list(run_case(load_named_policy("first-steps"), case)) == []


def test_the_mistake_of_the_how_to_is_told_as_it_says() -> None:
    (wrong,) = [block for block in blocks(HOWTO) if block.startswith("# mine.yaml, with a mistake")]
    said = re.findall(r"^mine\.yaml:\d.*$", HOWTO, re.MULTILINE)
    with pytest.raises(FileError) as caught:
        parse_policy(wrong.encode(), Path("mine.yaml"))
    assert str(caught.value).splitlines() == said


def test_each_step_is_marked_in_the_shipped_policy() -> None:
    text = (SHIPPED / "first-steps.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"# step (\d)", text)) == set(re.findall(r"^## (\d)\. ", HOWTO, re.MULTILINE))
