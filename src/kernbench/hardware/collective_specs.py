"""What a machine file says about its collective library: what a protocol costs besides bytes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache, cached_property
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from kernbench.hardware.kernel_constants import read_constants
from kernbench.hardware.rates import PS_PER_US, ceil_ps, transfer_ps
from kernbench.hardware.spec_base import Count, NotNegative, Positive, Share, Spec

ProtocolName = Literal["ll", "ll128", "simple"]


class RampSpec(Spec):
    """Time that grows to a limit with the size: ``us * x**power / (1 + x**power)``, x in halves."""

    us: NotNegative
    """The limit, for large sizes."""
    us_per_rank: NotNegative = Fraction(0)
    """Added to ``us`` for every rank of the group."""
    half_kib: Positive
    """The size at which half of the limit is reached."""
    power: Literal[1, 2]
    """How steeply the time grows."""
    of: Literal["chunk", "message"]
    """Which size: that of a chunk, or of the message."""

    def ps(self, num_ranks: int, chunk_bytes: int, message_bytes: int) -> int:
        """Return the time for a collective of ``num_ranks``, rounded up."""
        size = chunk_bytes if self.of == "chunk" else message_bytes
        x = (Fraction(size, 1024) / self.half_kib) ** self.power
        return ceil_ps((self.us + self.us_per_rank * num_ranks) * PS_PER_US * x / (1 + x))


class ChannelSpec(Spec):
    """Into what pieces a channel cuts its part of a message that ranks hand on in pieces."""

    least_kib: Positive
    """How much of a message each channel has before another one is used."""
    pieces: Count
    """Pieces of each channel's part, where they are not shorter or longer than what follows."""
    piece_kib: Positive
    """The least length of a piece; the part may have less."""
    most_kib: Positive
    """Its greatest length."""

    def first(self, message_bytes: int, most_channels: int) -> tuple[int, int]:
        """Return how many channels a message takes, and the bytes of the first piece of each.

        >>> tree = ChannelSpec(least_kib=4, pieces=4, piece_kib=16, most_kib=64)
        >>> [tree.first(size << 10, 8) for size in (1, 16, 512, 8192)]
        [(1, 1024), (4, 4096), (8, 16384), (8, 65536)]
        """
        channels = min(max(int(message_bytes / (self.least_kib * 1024)), 1), most_channels)
        part = -(-message_bytes // channels)
        piece = max(Fraction(part, self.pieces), self.piece_kib * 1024)
        return channels, min(int(min(piece, self.most_kib * 1024)), part)


class ProtocolSpec(Spec):
    """How the blocks of a collective hand chunks to each other, and what that costs."""

    launch_us: NotNegative = Fraction(0)
    """The time from the call to the first byte on its way."""
    launch_per_rank_us: NotNegative = Fraction(0)
    """The time added to ``launch_us`` for every rank of the group but one."""
    step_us: NotNegative = Fraction(0)
    """From the arrival of a chunk to its use, for a flag; the latency of the route comes on top."""
    network_step_us: NotNegative | None = None
    """The same for a chunk from another node, which a host's thread hands to the network and takes
    from it. ``step_us`` when missing."""
    pipeline_kib: Positive | None = None
    """In rail_tree: how much of a chunk a rank has before it hands on what it has; all of it when
    missing. Not where there is a ``channel``."""
    channel: ChannelSpec | None = None
    """In rail_tree: the pieces of each channel, which takes its part of a link."""
    round_us: NotNegative = Fraction(0)
    """The time added to ``step_us`` for transfers that wait for a whole round of others."""
    bandwidth_share: Share = Fraction(1)
    """Payload over the bytes that the links carry (flags), times what kernels reach of a link."""
    network_share: Share | None = None
    """The same of links between nodes, which network interfaces fill, not kernels: payload over
    bytes. ``bandwidth_share`` when missing."""
    tail_chunks: NotNegative = Fraction(0)
    """Share of a chunk's time that the last receive of a rank takes beside the transfer."""
    fill_share: NotNegative = Fraction(0)
    """The same for the slices that cannot overlap: at most ``channels`` slices of the buffer."""
    own_part: NotNegative = Fraction(0)
    """In all_to_all: share of the time of a chunk that the rank's own part takes, which the blocks
    that send and receive copy too. 0 where links take longer than blocks."""
    ramp: RampSpec | None = None
    """Channels that start as the message grows."""
    max_chunk_kib: Positive | None = None
    """Chunks that are larger cannot use it."""
    only_up_to_ranks: Count | None = None
    """Groups that are larger cannot use it."""

    def share(self, between_nodes: bool) -> Fraction:
        """Return how much of a link's bandwidth is payload."""
        if between_nodes and self.network_share is not None:
            return self.network_share
        return self.bandwidth_share

    def piece_bytes(self, chunk_bytes: int) -> int:
        """Return how much of a chunk a rank has before it hands on what it has."""
        if self.pipeline_kib is None:
            return chunk_bytes
        return min(chunk_bytes, int(self.pipeline_kib * 1024))

    def launch_ps(self, num_ranks: int, chunk_bytes: int, message_bytes: int) -> int:
        """Return the time before the first transfer."""
        fixed = self.launch_us + self.launch_per_rank_us * (num_ranks - 1)
        ramp = self.ramp.ps(num_ranks, chunk_bytes, message_bytes) if self.ramp else 0
        return ceil_ps(fixed * PS_PER_US) + ramp

    @cached_property
    def step_ps(self) -> int:
        return ceil_ps(self.step_us * PS_PER_US)

    @cached_property
    def network_ps(self) -> int:
        """What a chunk from another node takes longer to be used than one of the node."""
        if self.network_step_us is None:
            return 0
        return max(ceil_ps(self.network_step_us * PS_PER_US) - self.step_ps, 0)

    @cached_property
    def round_ps(self) -> int:
        return ceil_ps(self.round_us * PS_PER_US)

    def tail_ps(
        self, chunk_bytes: int, gbps: Fraction, fill_bytes: int, has_own_part: bool = False
    ) -> int:
        """Return what a rank's last receive takes beside its transfer at ``gbps``.

        ``has_own_part`` says that each rank has a part for itself, which is copied like others.
        """
        chunks = self.tail_chunks + (self.own_part if has_own_part else 0)
        size = chunks * chunk_bytes + self.fill_share * min(chunk_bytes, fill_bytes)
        return transfer_ps(ceil_ps(size), gbps)


class NetworkSpec(Spec):
    """What a network between nodes is to a library, whatever the protocol."""

    step_us: Positive
    """From a flag that a GPU sets to one that a GPU of another node sees: a host's thread posts
    what is there, another one polls. Latencies of the links come on top."""
    share: Share
    """Payload over what the interfaces could carry, for large messages."""


class BetweenNodes(Spec):
    """What one protocol is between nodes, on any network."""

    steps: Positive
    """Its step, in those of the network."""
    share: Share
    """Its payload over that of the network's large messages."""
    channel: ChannelSpec
    source: str
    """What the numbers are from, or were fitted to."""


class _BetweenNodesFile(Spec):
    protocols: dict[ProtocolName, BetweenNodes]


@cache
def between_nodes() -> Mapping[ProtocolName, BetweenNodes]:
    """Return what each protocol is between nodes.

    Raises:
        MachineError: The file has an unknown key, or an impossible value.
    """
    name = "protocols_between_nodes.yaml"
    file = resources.files("kernbench.hardware") / name
    return read_constants(_BetweenNodesFile, file, name).protocols


PLAIN_PROTOCOL = ProtocolSpec()
"""A library that costs nothing: transfers take what the links take."""

Class = Literal["chained", "point_to_point", "peer", "in_switch"]
"""How an algorithm moves data: block to block, by send and receive, by plain stores into the
peers' memory, or through a switch that reduces."""


class NcclTable(Spec):
    """The constants by which NCCL chooses an algorithm and a protocol; no time is made of them.

    Source of the form: NCCL, src/graph/tuning.cc and src/enqueue.cc.
    """

    link_gbps: Positive
    """Bandwidth of the channels' graph."""
    hop: Literal["nvlink", "pcie"]
    """What joins the ranks, by which NCCL estimates the latency of a hop."""
    ll_max_gbps: Positive
    """What LL carries at most."""
    ll128_per_channel_gbps: Positive | None = None
    """What a channel carries at most with LL128; left out where LL128 is off."""
    tree_per_channel_gbps: Positive
    """What a channel carries at most in a tree."""
    nvls_efficiency: Share | None = None
    """Share of the bandwidth that NVLS reaches; left out where NVLS is off."""
    nvls_min_ranks: Count | None = None
    """Groups that are smaller do not use NVLS; 2 when missing."""


class CollectivesSpec(Spec):
    """The collective library of a machine."""

    channels: Count = 1
    """Blocks that move a message side by side."""
    channel_mib: NotNegative = Fraction(0)
    """Memory of a device that each channel of a group takes: its buffers of all protocols."""
    slice_kib: Count = 2048
    """What a channel's buffer holds of a chunk."""
    protocols: Annotated[dict[ProtocolName, ProtocolSpec], Field(min_length=1)]
    """For rings, trees and whatever hands chunks from block to block."""
    point_to_point: Annotated[dict[ProtocolName, ProtocolSpec], Field(min_length=1)] | None = None
    """For sends and receives and what is made of them (all_to_all, gather, scatter); the same as
    ``protocols`` where it is missing."""
    peer: ProtocolSpec | None = None
    """For one_shot and two_shot: kernels that store into their peers' memory."""
    network: NetworkSpec | None = None
    """The network between nodes. What ``protocols`` and ``point_to_point`` do not say of it is made
    of this and of what a protocol is on any network."""
    in_switch: ProtocolSpec | None = None
    """For in_switch: a switch that adds and copies. Missing where the switch does neither."""
    nccl: NcclTable | None = None
    """A vendor's own choice; without it the fastest modeled time is taken."""

    def of_class(self, algorithm_class: Class) -> Mapping[str, ProtocolSpec]:
        """Return the protocols by name that an algorithm of a class can use."""
        if algorithm_class == "in_switch":
            return {} if self.in_switch is None else {"simple": self.in_switch}
        if algorithm_class == "peer" and self.peer is not None:
            return {"simple": self.peer}
        if algorithm_class == "point_to_point" and self.point_to_point is not None:
            return self._of_messages
        return self._chained

    @cached_property
    def _chained(self) -> Mapping[str, ProtocolSpec]:
        return self._between_nodes(self.protocols)

    @cached_property
    def _of_messages(self) -> Mapping[str, ProtocolSpec]:
        return self._between_nodes(self.point_to_point or {})

    def _between_nodes(
        self, protocols: Mapping[ProtocolName, ProtocolSpec]
    ) -> dict[str, ProtocolSpec]:
        """Return protocols with what they do not say of the network between nodes."""
        if self.network is None:
            return {str(name): protocol for name, protocol in protocols.items()}
        result: dict[str, ProtocolSpec] = {}
        for name, protocol in protocols.items():
            of = between_nodes()[name]
            known = {
                "network_step_us": self.network.step_us * of.steps,
                "network_share": self.network.share * of.share,
                "channel": of.channel,
            }
            missing = {key: value for key, value in known.items() if getattr(protocol, key) is None}
            result[str(name)] = protocol.model_copy(update=missing)
        return result

    @property
    def buffer_bytes(self) -> int:
        """What a group takes of a device's memory."""
        return int(self.channels * self.channel_mib * 2**20)

    @property
    def fill_bytes(self) -> int:
        """What all channels' slices hold together."""
        return self.channels * self.slice_kib * 1024
