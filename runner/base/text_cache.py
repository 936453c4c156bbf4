"""A cache of what is derived from texts, bounded by the size of the texts: users decide how long they are."""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


def cached_by_text(entries: int, budget_bytes: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Cache a function of one text for the texts that were used last; a larger text is not kept at all."""

    def decorate(function: Callable[[str], T]) -> Callable[[str], T]:
        found: OrderedDict[str, T] = OrderedDict()
        lock, total = Lock(), 0

        @wraps(function)
        def cached(text: str) -> T:
            nonlocal total
            with lock:
                if text in found:
                    found.move_to_end(text)
                    return found[text]
            value = function(text)
            with lock:
                if text not in found and len(text) <= budget_bytes:
                    found[text] = value
                    total += len(text)
                while len(found) > entries or total > budget_bytes:
                    total -= len(found.popitem(last=False)[0])
            return value

        return cached

    return decorate
