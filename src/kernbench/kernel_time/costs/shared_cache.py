"""The model of the cache that all PEs of a SIP share: what hits, and what hits and misses cost.

Every rule is here, and its constants are those of ``CacheSpec``. Other modules have the facts that
the rules go by: ``cache_contents`` what was used since when, ``traffic`` and ``joint_reads`` which
programs read the same bytes, ``lookup_tables`` how large tables are.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

from kernbench.hardware import CacheSpec, SipSpec, ps_per_byte

Share = TypeVar("Share", float, Fraction)

STEPS = 16
"""Shares are multiples of one over this, so that schedules are met again."""
SHARES = tuple(Fraction(step, STEPS) for step in range(STEPS + 1))
"""Every share that there is, by its number of steps."""
_RESULT_STEPS = 64
_NONE, _ALL = Fraction(0), Fraction(1)


def kept_share(reuse_bytes: int, cache: CacheSpec) -> Fraction:
    """Return which share of data a cache still has after so many bytes, its own included."""
    held_bytes = cache.held_bytes
    # Asked several times per launch, and mostly at one of the two ends.
    if reuse_bytes <= held_bytes:
        return _ALL
    if reuse_bytes >= forgotten_bytes(cache):
        return _NONE
    return still_there(Fraction(reuse_bytes, held_bytes))


def forgotten_bytes(cache: CacheSpec) -> int:
    """Return after how many bytes, its own included, a cache has nothing of data."""
    return 2 * cache.held_bytes


def still_there(reused: Share) -> Share:
    """Return which share of data is there after ``reused`` times what a cache holds.

    All of it up to once, none of it from twice on.
    """
    kind = type(reused)
    return max(kind(0), min(2 - reused, kind(1)))


def nearest_step(share: Fraction) -> Fraction:
    """Return a share to the nearest of :data:`SHARES`."""
    return SHARES[round(share * STEPS)]


def stay_for_launch(
    room: int, sizes: Sequence[int | None], takes: Sequence[int] | None = None
) -> tuple[list[bool], int]:
    """Return which operands stay in the cache for a whole launch, and what is left of ``room``.

    The smallest do, as long as they fit together. ``sizes`` are in bytes, None for an operand that
    nothing reads again; ``takes`` is how much room each takes where that is not its size.
    """
    stay = [False] * len(sizes)
    wanted = [(size, index) for index, size in enumerate(sizes) if size is not None]
    for size, index in sorted(wanted):
        if size <= room:
            stay[index] = True
            room -= size if takes is None else takes[index]
    return stay, room


class SharedCache:
    """The cache of one SIP. One without a cache takes no time, and every command waits for HBM."""

    def __init__(
        self, sip: SipSpec, bandwidth_gbps: Fraction | None = None, *, fills_apart: bool = False
    ) -> None:
        self._spec = sip.cache
        self._bandwidth_gbps = bandwidth_gbps
        self._fills_apart = fills_apart
        """Whether what HBM brings does not take the bandwidth to the PEs."""
        self._hbm_latency_ns = sip.cube.hbm_latency_ns
        self.room = None if sip.cache is None else sip.cache.held_bytes
        """How many bytes stay for a whole launch, None without a cache."""

    @cached_property
    def _ps_per_byte(self) -> Fraction:
        if self._spec is None:
            return _NONE
        return ps_per_byte(self._bandwidth_gbps or self._spec.bandwidth_gbps)

    def stays(self, size_bytes: int) -> bool:
        """Return whether an operand stays for a whole launch that has the cache to itself."""
        return self.room is not None and stay_for_launch(self.room, [size_bytes])[0][0]

    def result_share(self, size_bytes: int) -> Fraction:
        """Return how much of a result is still there when the next kernel reads it."""
        if self.room is None:
            return _NONE
        share = min(Fraction(self.room, size_bytes), _ALL)
        return Fraction(round(share * _RESULT_STEPS), _RESULT_STEPS)

    def missed(self, in_launch: Share, held: Share) -> Share:
        """Return the share of a load's bytes that HBM moves.

        ``in_launch`` is what it would be in an empty cache; ``held`` is how much of the operand was
        there before the launch.
        """
        return in_launch if self._spec is None else in_launch * (1 - held)

    def crossings(self, missed: Share, stores: bool = False) -> Share | int:
        """Return how often each byte of a command crosses it, of which a share is ``missed``."""
        # What a load misses is written into the cache before it is read.
        return 1 if stores or self._fills_apart else 1 + missed

    def ps_per_byte(self, active: int, missed: Fraction, stores: bool) -> Fraction:
        """Return the time per byte on the share of one of ``active`` programs.

        ``missed`` is the share of a load's bytes that HBM moves.
        """
        return self._ps_per_byte * active * self.crossings(missed, stores)

    def waits_for_hbm(self, stores: bool) -> bool:
        """Return whether a command that misses ends only when HBM has served it.

        A store may end before HBM has it.
        """
        return not stores or self._spec is None or not self._spec.write_back

    def latency_ns(self, missed: Fraction, waits: bool) -> Fraction:
        """Return the latency of a command on its own cube; ``waits`` as of ``waits_for_hbm``."""
        if self._spec is not None and not (missed and waits):
            return self._spec.latency_ns
        return self._hbm_latency_ns
