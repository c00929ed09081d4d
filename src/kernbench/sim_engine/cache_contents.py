"""What the shared cache of a SIP still holds of memory when the next command starts (ADR-0048)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kernbench.hardware import CacheSpec

_STEPS = 16
"""Shares are multiples of one over this, so that schedules are met again."""
_SHARES = tuple(Fraction(step, _STEPS) for step in range(_STEPS + 1))
_MOST_RANGES = 32
"""How many ranges are remembered: what was used longer ago counts as gone."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes that were used together, in order: ``size`` of those from ``start`` to ``end``."""

    start: int
    end: int
    size: int

    def part(self, start: int, end: int) -> _Range:
        length = self.end - self.start
        return _Range(start, end, -(-self.size * (end - start) // length))


class CacheContents:
    """Address ranges of one SIP, the latest used first.

    A byte is still there if few enough were used since, itself included: ``CacheSpec.kept_share``
    of this reuse distance, in which the bytes of every range count once. A SIP without a cache
    holds nothing.
    """

    def __init__(self, cache: CacheSpec | None) -> None:
        self._cache = cache
        self._ranges: list[_Range] = []

    def touch(self, start: int, end: int, size: int | None = None) -> None:
        """Take note that a command uses bytes of an address range, all of them or ``size``."""
        cache = self._cache
        if cache is None or start >= end:
            return
        whole = end - start
        newest = _Range(start, end, whole if size is None else min(size, whole))
        self._ranges = [newest, *self._others(start, end)][:_MOST_RANGES]
        distance = 0
        for number, each in enumerate(self._ranges):
            distance += each.size
            if distance >= cache.forgotten_bytes:
                del self._ranges[number:]
                break

    def _others(self, start: int, end: int) -> Iterator[_Range]:
        """Yield what there is outside of an address range."""
        for each in self._ranges:
            if each.end <= start or each.start >= end:
                yield each
                continue
            if each.start < start:
                yield each.part(each.start, start)
            if each.end > end:
                yield each.part(end, each.end)

    def share(self, start: int, end: int) -> Fraction:
        """Return which share of an address range is there, rounded down to a step."""
        held: int | Fraction = 0
        distance = 0
        for each in self._ranges:
            distance += each.size
            if each.start < end and start < each.end:
                assert self._cache is not None
                overlap = min(end, each.end) - max(start, each.start)
                kept = self._cache.kept_share(distance)
                held += overlap if kept == 1 else overlap * kept
        return _SHARES[int(_STEPS * held // (end - start))] if held else _SHARES[0]
