"""Detects equal collective calls that ranks may have made in different orders."""

from __future__ import annotations

import linecache
import warnings
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kernbench.clock import UserSite
from kernbench.runtime_api import Part, Signature

_MOST = 16
"""How many earlier calls each call is compared with."""


class SwappedCallsWarning(UserWarning):
    """Two ranks made two equal calls in opposite orders: each may have the other's data."""


class _Meeting(NamedTuple):
    title: str
    signature: Signature
    sites: tuple[UserSite, ...]


class CallOrder:
    """The latest calls of one group that came from different lines on different ranks."""

    def __init__(self) -> None:
        self._latest: deque[_Meeting] = deque(maxlen=_MOST)
        self._said: set[frozenset[UserSite]] = set()

    def check(self, title: str, parts: Sequence[Part]) -> None:
        """Warn if two ranks made this call and an earlier one in opposite orders.

        Source lines are equal if their text is equal: each rank may call from its own branch.
        """
        first = parts[0].site
        if all(part.site == first for part in parts):
            return
        now = _Meeting(title, parts[0].signature, tuple(part.site for part in parts))
        for earlier in self._latest:
            if earlier.signature == now.signature:
                self._compare(earlier, now, parts)
        self._latest.append(now)

    def _compare(self, earlier: _Meeting, now: _Meeting, parts: Sequence[Part]) -> None:
        ends: dict[tuple[object, object], tuple[Part, UserSite, UserSite]] = {}
        for part, before, after in zip(parts, earlier.sites, now.sites, strict=True):
            first, then = _words(before), _words(after)
            other = ends.get((then, first))
            both = frozenset((before, after))
            if first != then and other is not None and both not in self._said:
                self._said.add(both)
                rank, its_before, its_after = other[0].rank, *other[1:]
                warnings.warn_explicit(
                    f"{earlier.title} and {now.title} may be swapped: rank {rank} calls them at "
                    f"{its_before} and {its_after}, rank {part.rank} at {before} and {after}; they "
                    "have the same kind and shape, so each rank continues with the other's data",
                    SwappedCallsWarning,
                    before.file,
                    before.line,
                )
            ends.setdefault((first, then), (part, before, after))


def _words(site: UserSite) -> object:
    """Return the text of a source line, or its file and number if the text cannot be read."""
    return linecache.getline(site.file, site.line).strip() or site
