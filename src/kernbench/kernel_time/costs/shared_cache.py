"""What the cache that all PEs of a SIP share does to loads and stores: room, time, latency.

What it holds of tensors when a launch begins is in ``cache_contents``; which bytes of a launch miss
it follows from the room that this gives, in ``traffic``.
"""

from __future__ import annotations

from fractions import Fraction

from kernbench.hardware import SipSpec, ps_per_byte


class SharedCache:
    """The cache of one SIP. One without a cache takes no time, and every command waits for HBM."""

    def __init__(self, sip: SipSpec) -> None:
        self._spec = sip.cache
        self._hbm_latency_ns = sip.cube.hbm_latency_ns
        self._ps_per_byte = ps_per_byte(sip.cache.bandwidth_gbps) if sip.cache else Fraction(0)
        self.room = None if sip.cache is None else sip.cache.held_bytes
        """How many bytes stay for a whole launch, None without a cache."""

    def ps_per_byte(self, active: int, missed: Fraction, stores: bool) -> Fraction:
        """Return the time per byte on the share of one of ``active`` programs.

        ``missed`` is the share of a load's bytes that HBM moves.
        """
        alone = self._ps_per_byte * active
        # What a load misses is written into the cache before it is read.
        return alone if stores else alone * (1 + missed)

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
