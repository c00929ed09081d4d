"""What a kernel of a vendor library does: tiles of equal work, and the steps of their loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What one trip of a tile's inner loop asks of its PE."""

    flops: float = 0.0
    """FLOPs of the matrix engine, padding included."""
    dtype: str = "bfloat16"
    """The dtype of its operands: a key of ``sip.pe.gemm.flops_per_clock``."""
    transcendental: float = 0.0
    """Exponentials, logarithms, roots; elements of the vector engine."""
    simple: float = 0.0
    """Other arithmetic; elements of the vector engine."""
    loaded_bytes: float = 0.0
    """Into the PE, from the cache or from HBM."""
    access_bytes: int = 16
    """The bytes that a lane loads at a time. Where fewer than 16, the PE issues accesses rather
    than moves bytes."""
    missed: float = 0.0
    """Share of trips whose loads come from HBM rather than from the cache, and wait longer."""
    pipelined: bool = False
    """Whether loads run ahead: latency then adds nothing to the arithmetic that it is behind."""
    ping_pong: bool = False
    """Whether halves of the tile take turns: one is on the matrix engine while the other is on the
    vector engine, so that a tile that has a PE for itself overlaps both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles (blocks of threads) that do the same."""

    count: int
    trips: float
    """The trips of each tile's loop."""
    trip: Trip
    stored_bytes: float = 0.0
    """Out of the PE, by each tile."""
    rows: float = 0.0
    """The rows of each tile that come in and go out one by one: what a row costs is a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKernel:
    """One launch."""

    name: str
    """The name of its constants: a key of ``kernels`` in an architecture's file."""
    tiles: tuple[Tiles, ...]
    resident: int = 1
    """Tiles that share a PE at a time."""
    hbm_read_bytes: float = 0.0
    """Distinct bytes that come from HBM."""
    hbm_written_bytes: float = 0.0
    warm: bool = False
    """Whether a launch on the same bytes came just before: what the cache keeps of them, HBM does
    not move."""
    longest_first: bool = True
    """Whether tiles with many trips start first; else the last tile that starts may be one."""
    in_waves: bool = False
    """Whether a tile is a block of threads that fills a PE, so that the next begins when it ends:
    a wave takes what its own tiles, and what these load, take, however few the last one has."""
    stores_last: bool = False
    """Whether all tiles store at about the same time, when their loops are over, so that a tile has
    its PE's share of HBM's bandwidth for what the cache does not keep."""
    loss_share: float = 1.0
    """What it loses of ``float32_clock_loss``, where a board has it."""
    overlap: float = math.inf
    """How well the tiles, the cache and HBM work beside each other: the power of the norm of their
    times that the kernel takes. The slowest alone decides when infinite, all one after another
    at 1."""

    @property
    def num_tiles(self) -> int:
        return sum(tile.count for tile in self.tiles)

    @property
    def hbm_bytes(self) -> float:
        return self.hbm_read_bytes + self.hbm_written_bytes

    @property
    def flops(self) -> float:
        """Of the matrix engines, padding included."""
        return sum(tile.count * tile.trips * tile.trip.flops for tile in self.tiles)

    @property
    def port_bytes(self) -> float:
        """Bytes between the PEs and the rest of the device."""
        return sum(
            tile.count * (tile.trips * tile.trip.loaded_bytes + tile.stored_bytes)
            for tile in self.tiles
        )


def merged(kernels: Sequence[LibraryKernel]) -> LibraryKernel:
    """Return one launch with the tiles and bytes of several of the same kernel."""
    if len(kernels) == 1:
        return kernels[0]
    tiles = [tiles for kernel in kernels for tiles in kernel.tiles]
    return replace(
        kernels[0],
        tiles=tuple(sorted(tiles, key=lambda item: item.trips, reverse=True)),
        hbm_read_bytes=sum(kernel.hbm_read_bytes for kernel in kernels),
        hbm_written_bytes=sum(kernel.hbm_written_bytes for kernel in kernels),
    )
