"""Exact conversion of rates and times to integer picoseconds, always rounded up (ADR-0003)."""

from __future__ import annotations

from fractions import Fraction

PS_PER_NS = 1_000
PS_PER_US = 1_000_000


def ceil_ps(value: Fraction) -> int:
    """Return a duration in picoseconds as the smallest integer that is not below it.

    >>> ceil_ps(Fraction(1, 3)), ceil_ps(Fraction(2))
    (1, 2)
    """
    return -(-value.numerator // value.denominator)


def ps_per_byte(gbps: Fraction) -> Fraction:
    """Return the exact time of one byte at a rate of ``gbps`` gigabytes (1e9 bytes) per second."""
    return PS_PER_NS / gbps


def transfer_ps(size_bytes: int, gbps: Fraction) -> int:
    """Return the time of ``size_bytes`` bytes at ``gbps`` GB/s, rounded up.

    >>> transfer_ps(1, Fraction(3))
    334
    """
    return -(-size_bytes * PS_PER_NS * gbps.denominator // gbps.numerator)


def cycles_ps(cycles: int, clock_ghz: Fraction) -> int:
    """Return the time of ``cycles`` clock cycles, rounded up.

    >>> cycles_ps(3, Fraction("1.5"))
    2000
    """
    return -(-cycles * PS_PER_NS * clock_ghz.denominator // clock_ghz.numerator)
