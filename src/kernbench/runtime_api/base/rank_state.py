"""What the runtime keeps per rank."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from kernbench.clock import Handle, Stream
from kernbench.errors import UsageError
from kernbench.runtime_api.base.streams import DeviceStream


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttributes:
    """How a launch uses the device, for ``torch.launch(..., attributes=...)``.

    Attributes:
        follows: Its start overlaps the end of the kernel before it on the stream (programmatic
            dependent launch): the front end takes ``queued_front_end_us``.
        cached: (parameter name, share) of the pointers of which the cache keeps a share (an
            access policy window): so much does not come from HBM, and stores do not go there.

    >>> LaunchAttributes(follows=True, cached=(("x_ptr", Fraction(1, 2)),)).cached
    (('x_ptr', Fraction(1, 2)),)
    """

    follows: bool = False
    cached: tuple[tuple[str, Fraction], ...] = ()

    def __post_init__(self) -> None:
        for name, share in self.cached:
            if not 0 <= share <= 1:
                raise UsageError(
                    f"the cached share of parameter {name} must be from 0 to 1, but got {share}"
                )


PLAIN_LAUNCH = LaunchAttributes()
"""A launch without attributes."""


@dataclass(slots=True, eq=False)
class Probe:
    """A benchmark in progress: its launches are not enqueued, their modeled time is summed."""

    time_ps: int = 0


@dataclass(slots=True, eq=False)
class RankState:
    """A rank's device and place in the world; main, outside of ``spawn``, is rank 0."""

    rank: int
    world_size: int
    sip_id: int
    """The SIP the rank is bound to (ADR-0024 D10)."""
    spawn_id: int
    """Which call of ``spawn`` the rank belongs to, -1 for main: groups never mix two of them."""
    bound: bool = False
    """Whether the program itself chose the SIP."""
    call_counts: dict[Hashable, int] = field(default_factory=dict)
    """How many collectives this rank has called on each group."""
    channel_tails: dict[Hashable, Handle] = field(default_factory=dict)
    """The newest call on each group, and on each pair of sender and receiver."""
    new_group_calls: int = 0
    stream: DeviceStream | None = None
    """Inside ``torch.ahbm.stream(...)``, that stream; else None for the SIP's default one."""
    random_calls: int = 0
    seed: int | None = None
    """Set by ``manual_seed``; None takes the run's."""
    last_launch: Handle | None = None
    """What ``torch.launch`` returns."""
    launch_label: str | None = None
    """The name that ``torch.launch`` gave to the launch in progress."""
    launch_attributes: LaunchAttributes | None = None
    """The attributes that ``torch.launch`` gave to the launch in progress."""
    probe: Probe | None = None
    """Set while the rank measures launches (``benchmark_ms``)."""
    tuned: frozenset[str] | None = None
    """What a tuner resets, from its benchmarks to the launch of what it has chosen."""
    blocking_wait: bool = True
    """Whether waiting for a collective blocks the host, or only the current stream."""
    extensions: dict[Any, Any] = field(default_factory=dict)
    """What packages above the runtime keep per rank, each under a key of its own."""

    def put_behind(self, channel: Hashable, queue: Stream | None, part: Handle) -> list[Handle]:
        """Put a call behind the newest one on its channel; return what else it comes after.

        That is what is on ``queue`` now, if the call follows a stream, and the call before it.
        """
        before = self.channel_tails.get(channel)
        self.channel_tails[channel] = part
        tail = None if queue is None else queue.tail
        return [handle for handle in (tail, before) if handle is not None]
