"""Which memory the shared cache of a SIP still holds when a command starts.

See docs/model/cache.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from fractions import Fraction
from itertools import count
from typing import Any

from kernbench.hardware import CacheSpec
from kernbench.kernel_time.costs.shared_cache import SHARES, STEPS, forgotten_bytes, kept_share

_MOST_RANGES = 32
"""How many ranges are remembered: what was used longer ago counts as gone."""

_MOST_STEPS = 1024
"""How many steps are kept before older ones go; ranks that do the same are fewer launches apart."""

Span = tuple[int, int]


class CachedRanges:
    """Address ranges that do not overlap, and in which order they were used.

    A byte is still there if few enough were used since, itself included: :func:`kept_share`
    of this reuse distance, in which the bytes of every range count once. A SIP without a cache
    holds nothing.

    Every launch asks several times, mostly for a range as it was used before: that is one look-up,
    however many others there are.
    """

    def __init__(self, cache: CacheSpec | None) -> None:
        self.number = 0
        """Equal numbers, among SIPs that share steps, mean equal ranges; below 0: it has none."""
        self._cache = cache
        self._held_bytes = cache.held_bytes if cache is not None else 0
        self._forgotten_bytes = forgotten_bytes(cache) if cache is not None else 0
        self._sizes: dict[Span, int] = {}
        """How many bytes of a range were used together; the latest range last."""
        self._num_bytes = 0
        self._starts: list[int] = []
        """The starts of all ranges, in address order."""
        self._ends: list[int] = []

    def touch(self, start: int, end: int, size: int | None = None) -> None:
        """Record that a command uses bytes of an address range, all of them or ``size``."""
        if size is None or size > end - start:
            size = end - start
        if size <= 0 or self._cache is None:
            return
        span = (start, end)
        before = self._sizes.pop(span, None)
        if before == size:
            self._sizes[span] = size
        else:
            self._put(span, size, before)

    def copy(self) -> CachedRanges:
        """Return the same ranges, to be changed."""
        cached_ranges = CachedRanges(self._cache)
        cached_ranges._sizes, cached_ranges._num_bytes = self._sizes.copy(), self._num_bytes
        cached_ranges._starts, cached_ranges._ends = self._starts.copy(), self._ends.copy()
        return cached_ranges

    def share_steps(self, start: int, end: int) -> int:
        """Return which share of an address range is there, as a place in :data:`SHARES`."""
        if (start, end) in self._sizes and self._num_bytes <= self._held_bytes:
            return STEPS
        place = bisect_left(self._starts, end)
        if not place or self._ends[place - 1] <= start or start >= end:
            return 0
        assert self._cache is not None
        held: int | Fraction = 0
        distance = 0
        for (low, high), size in reversed(self._sizes.items()):
            distance += size
            if low < end and start < high:
                kept = kept_share(distance, self._cache)
                overlap = min(end, high) - max(start, low)
                held += overlap if kept == 1 else overlap * kept
        return int(STEPS * held // (end - start))

    def _put(self, span: Span, size: int, before: int | None) -> None:
        """Make a range the most recently used; ``before`` is its size until now, if any."""
        self._sizes[span] = size
        self._num_bytes += size - (before or 0)
        if before is None:
            start, end = span
            place = bisect_left(self._starts, end)
            if place and self._ends[place - 1] > start:
                self._cut_out(start, end)
                place = bisect_left(self._starts, end)
            self._starts.insert(place, start)
            self._ends.insert(place, end)
            while len(self._sizes) > _MOST_RANGES:
                self._forget_oldest()
        while self._num_bytes >= self._forgotten_bytes:
            self._forget_oldest()

    def _cut_out(self, start: int, end: int) -> None:
        """Forget whatever overlaps an address range, except the range itself."""
        newest = (start, end)
        numbers: dict[Span, int] = {}
        for (low, high), size in self._sizes.items():
            if high <= start or low >= end or (low, high) == newest:
                numbers[low, high] = size
                continue
            # Of a range that is cut in two, what lies lower counts as used later.
            for part in ((end, high), (low, start)):
                if part[0] < part[1]:
                    numbers[part] = -(-size * (part[1] - part[0]) // (high - low))
        self._sizes = numbers
        self._num_bytes = sum(numbers.values())
        others = sorted(span for span in numbers if span != newest)
        self._starts = [span[0] for span in others]
        self._ends = [span[1] for span in others]

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._sizes))
        self._num_bytes -= self._sizes.pop(oldest)
        place = bisect_left(self._starts, oldest[0])
        del self._starts[place], self._ends[place]


class CacheSteps:
    """How ranges change by what is done, as far as alike SIPs have done it lately.

    Ranks that do the same at the same places of their SIPs' memory change them in the same way:
    what one has found out is a look-up for all others.
    """

    def __init__(self, most: int = _MOST_STEPS) -> None:
        self.num_sips = 0
        self._most = most
        self._numbers = count(1)
        self._recent: dict[Hashable, tuple[Any, CachedRanges]] = {}
        self._older: dict[Hashable, tuple[Any, CachedRanges]] = {}

    def get(self, key: Hashable) -> tuple[Any, CachedRanges] | None:
        """Return what a step has found, and the ranges after it."""
        recent = self._recent.get(key)
        if recent is None:
            recent = self._older.get(key)
            if recent is not None:
                self.keep(key, recent)
        return recent

    def keep(self, key: Hashable, pair: tuple[Any, CachedRanges]) -> None:
        """Keep a step; as many others later it is forgotten, unless it is done again."""
        if len(self._recent) >= self._most:
            self._older, self._recent = self._recent, {}
        self._recent[key] = pair

    def new_number(self) -> int:
        return next(self._numbers)


class CacheContents:
    """What the cache of one SIP holds.

    ``base`` is where the SIP's memory begins: ranges are relative to it. SIPs that are alike share
    ``steps``.
    """

    def __init__(
        self, cache: CacheSpec | None, base: int = 0, steps: CacheSteps | None = None
    ) -> None:
        self.base = base
        self._ranges = CachedRanges(cache)
        # Without a cache nothing changes.
        self.steps = CacheSteps() if steps is None or cache is None else steps
        self.steps.num_sips += 1

    def touch(self, start: int, end: int, size: int | None = None) -> None:
        """Record that a command uses bytes of an address range, all of them or ``size``."""
        start, end = start - self.base, end - self.base
        self.change((None, start, end, size), lambda ranges: ranges.touch(start, end, size))

    def share(self, start: int, end: int) -> Fraction:
        """Return which share of an address range is there, rounded down to a step."""
        return SHARES[self._ranges.share_steps(start - self.base, end - self.base)]

    def own(self) -> CachedRanges:
        """Return the ranges of a SIP that shares its steps with none, to be changed."""
        self._ranges.number = -1
        return self._ranges

    def change(self, key: Hashable, how: Callable[[CachedRanges], Any]) -> Any:
        """Change the ranges, and return what ``how`` does; the key decides all that it does."""
        ranges, steps = self._ranges, self.steps
        if steps.num_sips == 1:
            return how(self.own())
        if ranges.number < 0:
            ranges.number = steps.new_number()
        numbered = (ranges.number, key)
        step = steps.get(numbered)
        if step is None:
            after = ranges.copy()
            after.number = steps.new_number()
            step = how(after), after
            steps.keep(numbered, step)
        result, self._ranges = step
        return result
