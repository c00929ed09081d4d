"""What a run has of one SIP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.clock import DeviceEngine, Stream
    from kernbench.hardware import SipSpec
    from kernbench.kernel_time import CacheContents


@dataclass(frozen=True, slots=True, eq=False)
class Sip:
    """A SIP at work; a launch looks it up once, and takes from it what it needs."""

    spec: SipSpec
    launch_ps: int
    """How long a launch keeps the host busy."""
    tcm_bytes: int
    """Of one PE."""
    shared_memory_bytes: int
    """Of these: what one program may have for loads that run ahead."""
    pes: DeviceEngine
    """What kernels, fills and copies of all its streams share."""
    cache: CacheContents
    queue: Stream
    """Of its default stream."""
