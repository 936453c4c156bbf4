"""A cache of values that are expensive to compute; it does not change any result."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Holds at most ``capacity`` values and evicts the least recently used one; it is pickled empty."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.made = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key; it is computed if it is not in the cache."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = make()
        self.made += 1
        self._values[key] = value
        while len(self._values) > self.capacity:
            self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.capacity,)
