"""Results that were computed recently, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, made on first use; the least recently used are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; ``make`` is called if it is not known."""
        result = self._known.get(key)
        if result is None:
            return self.put(key, make())
        self._known.move_to_end(key)
        return result

    def find(self, key: K) -> V | None:
        """Return the value of a key, None if it is not known."""
        return self._known.get(key)

    def put(self, key: K, value: V) -> V:
        """Remember a value, and return it."""
        self._known[key] = value
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return value
