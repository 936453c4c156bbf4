"""Revisions that share a text are what they were, and take the size of the text once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.job.revision_text import RevisionText, SharedText, share_text, total_size

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), min_size=1, max_size=4)


def same(one: object, other: object) -> bool:
    """Return True if two JSON values are the same; Python takes 1 and true for equal."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(OBJECTS)
def test_each_revision_is_what_it_was(values: list[object]) -> None:
    shared = list(share_text(map(json.dumps, values)))
    assert all(same(json.loads(each.whole), value) for each, value in zip(shared, values, strict=True))
    assert len({id(each.shared) for each in shared}) == 1


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({}, {"a": None}),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3, "c": 4}]}),
        ({"a": [1]}, {"a": [1, 2]}),
    ],
)
def test_differences_that_are_easily_missed(first: object, other: object) -> None:
    *_, last = share_text([json.dumps(first), json.dumps(other)])
    assert same(json.loads(last.whole), other)


def test_a_large_text_counts_once_and_each_revision_by_its_edits() -> None:
    texts = list(share_text(json.dumps({"large": "x" * 10_000, "seed": seed}) for seed in range(100)))
    assert 10_000 < total_size(texts) < 15_000
    assert total_size([*texts, RevisionText.of("y" * 5000)]) > 15_000


def test_a_revision_may_be_edited_further() -> None:
    first, other = share_text(['{"sweep": {"id": ""}, "seed": 1}', '{"sweep": {"id": ""}, "seed": 2}'])
    edited = [json.loads(each.edited((("sweep", "id"), "7")).whole) for each in (first, other)]
    assert edited == [{"sweep": {"id": "7"}, "seed": seed} for seed in (1, 2)]


def test_revisions_with_equal_texts_are_equal() -> None:
    assert RevisionText.of("{}") == RevisionText(SharedText("{}"))
    assert RevisionText.of("{}").whole == "{}"


def test_no_revisions_share_nothing() -> None:
    assert list(share_text([])) == []
