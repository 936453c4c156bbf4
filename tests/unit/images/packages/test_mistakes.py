"""Further mistakes of requirements: what the resolver blames is left out."""

import pytest

from images.errors import BuildFailed
from images.packages.lock import Lock
from images.packages.mistakes import MOST, resolve_telling_all, without_blamed
from images.packages.resolve import Unresolvable
from images.packages.values import Requirements

LOCK = Lock("3.11", "x86_64", ())


def resolve(wanted: Requirements) -> Lock:
    """Fail at the first requirement that begins with ``bad``."""
    bad = next((line for line in wanted.lines if line.startswith("bad")), None)
    if bad is not None:
        raise Unresolvable(f"{bad} was not found and you require {bad}", "details")
    return LOCK


def reasons(*lines: str, again: object = resolve) -> tuple[str, ...]:
    with pytest.raises(Unresolvable) as raised:
        resolve_telling_all(resolve, again, Requirements(lines))  # type: ignore[arg-type]
    return raised.value.more


def test_each_mistake_is_told_once() -> None:
    assert resolve_telling_all(resolve, resolve, Requirements(("good",))) is LOCK
    assert reasons("bad-a", "good", "bad-b") == ("bad-b was not found and you require bad-b",)
    assert reasons("bad-a") == ()
    assert len(reasons(*(f"bad-{number}" for number in range(100)))) == MOST


def test_looking_ends_where_more_cannot_be_said() -> None:
    def away(_: Requirements) -> Lock:
        raise BuildFailed("the index is away")

    def builds(_: Requirements) -> Lock:
        raise Unresolvable("b has no wheel", "", unbuilt=("b", "1"))

    assert reasons("bad-a", "b", again=away) == ()
    assert reasons("bad-a", "b", again=builds) == ()


def test_a_requirement_is_found_by_the_words_of_the_reason() -> None:
    wanted = Requirements(("Foo_Bar>=1", "baz"))
    left = without_blamed(wanted, "foo-bar==2 depends on baz<1 and you require foo-bar>=1")
    assert left is not None
    assert left.lines == ("baz",)
    left = without_blamed(wanted, "all versions of baz depend on torch<2")
    assert left is not None
    assert left.lines == ("Foo_Bar>=1",)
    assert without_blamed(wanted, "the moon is full") is None
