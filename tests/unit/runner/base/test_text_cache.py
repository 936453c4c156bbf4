"""A cache that long texts cannot make large."""

from runner.base.text_cache import cached_by_text


def test_a_text_is_worked_out_once_until_others_have_taken_its_place() -> None:
    asked: list[str] = []

    @cached_by_text(entries=2, budget_bytes=10)
    def size(text: str) -> int:
        asked.append(text)
        return len(text)

    assert [size(text) for text in ("a", "bb", "a", "ccc", "a", "bb")] == [1, 2, 1, 3, 1, 2]
    assert asked == ["a", "bb", "ccc", "bb"]


def test_long_texts_leave_before_they_take_more_than_the_budget() -> None:
    asked: list[str] = []

    @cached_by_text(entries=100, budget_bytes=10)
    def size(text: str) -> int:
        asked.append(text)
        return len(text)

    for text in ("a" * 6, "b" * 6, "b" * 6, "a" * 6, "c" * 11, "c" * 11):
        size(text)
    assert asked == ["a" * 6, "b" * 6, "a" * 6, "c" * 11, "c" * 11]
