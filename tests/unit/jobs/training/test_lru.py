"""The number of kept values is bounded, and a discarded one is made again."""

import pickle

from jobs.training.lru import LruCache


def test_a_value_is_made_once_while_it_is_kept() -> None:
    kept: LruCache[str, list[str]] = LruCache(2)
    first = kept.get("a", lambda: ["a"])
    assert kept.get("a", lambda: ["another"]) is first
    assert kept.made == 1


def test_the_least_recently_used_value_is_given_up_first() -> None:
    kept: LruCache[str, str] = LruCache(2)
    for key in ("a", "b", "a", "c"):
        kept.get(key, key.upper)
    assert (len(kept), kept.made) == (2, 3)
    kept.get("a", "a".upper)
    assert kept.made == 3
    kept.get("b", "b".upper)
    assert kept.made == 4


def test_another_process_gets_the_room_and_none_of_the_values() -> None:
    kept: LruCache[str, str] = LruCache(3)
    kept.get("a", "a".upper)
    copy = pickle.loads(pickle.dumps(kept))  # noqa: S301 - our own bytes
    assert (copy.capacity, len(copy), len(kept)) == (3, 0, 1)
