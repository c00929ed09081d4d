"""What is moved where addresses or masks are data: a sample of addresses, one by one.

Which they are, :mod:`kernbench.kernel_time.costs.data_ranges` says (docs/model/cache.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Atomic,
    DmaRead,
    DmaWrite,
    Predicate,
    Separable,
    access_of,
    is_axis,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.costs.bursts import (
    Dims,
    DmaTile,
    Moved,
    TouchedBytes,
    alike_iterations,
    spans,
    tile_of,
)
from kernbench.kernel_time.costs.data_ranges import Numbers
from kernbench.kernel_time.costs.fingerprints import fold
from kernbench.kernel_time.program.origins import is_loaded, leaves
from kernbench.kernel_time.program.timed_plan import ONE_PATH, CommandSite

_SAMPLES = 3
"""Programs and iterations of one kind that are looked at, where their addresses are known."""


def listed(
    site: CommandSite,
    programs: Sequence[int],
    burst_bytes: int,
    trips: Mapping[int, int] = ONE_PATH,
) -> Moved:
    """Return what a DMA command moves on average, for alike programs at some positions.

    ``trips`` are their trip counts of loops that programs go around differently often.
    """
    tile = tile_of(site, programs[0], burst_bytes, trips)
    terms = [*tile.offsets.by_dims.items(), *tile.masks.by_dims.items()]
    cuts = dict(tile.loops)
    for part in (site.gather, site.mask):
        for leaf in () if part is None else leaves(part):
            for item, array in _pattern_of(leaf, programs[0]):
                terms.append((item, array[tuple(slice(cuts.get(dim)) for dim in item)]))
    dims, which = alike_iterations(terms, tile.loops)
    counts = np.array([count for _, count in tile.loops], dtype=np.int64)
    lengths = [count if dim in dims else 1 for dim, count in tile.loops]
    touched_bytes = []
    for number in range(int(which.max()) + 1):
        alike = np.flatnonzero(which == number)
        samples = []
        for share, program in _samples(site, programs):
            # Other iterations move alike: each sample is of another one.
            flat = alike[int(share * (len(alike) - 1))]
            others = (share * (counts - 1)).astype(np.int64)
            index = [
                int(own if dim in dims else other)
                for (dim, _), own, other in zip(
                    tile.loops, np.unravel_index(flat, lengths or (1,)), others, strict=False
                )
            ]
            iteration = dict(zip((dim for dim, _ in tile.loops), index, strict=True))
            samples.append(_lanes(site, Numbers(program, iteration), tile.burst_bytes))
        touched_bytes.append(_mean(samples, tile))
    return dims, tuple(touched_bytes[index] for index in which.tolist())


def _samples(site: CommandSite, programs: Sequence[int]) -> list[tuple[float, int]]:
    """Return a sample of the programs, and how far each lies between the first and the last.

    One is enough where stand-ins decide where the addresses lie.
    """
    if site.gather is not None and is_loaded(site.gather):
        return [(0.0, programs[0])]
    shares = [sample / (_SAMPLES - 1) for sample in range(_SAMPLES)]
    return [(share, programs[int(share * (len(programs) - 1))]) for share in shares]


def _pattern_of(leaf: Separable | Predicate, program: int) -> Iterator[tuple[Dims, Array]]:
    """Yield one program's terms of a tensor, without where it begins."""
    for dims, array in leaf.terms.items():
        if dims and dims[0] == PROGRAM:
            dims, array = dims[1:], array[min(program, len(array) - 1)]
        if isinstance(leaf, Predicate):
            yield dims, array
        elif dims and is_axis(dims[-1]):
            yield dims, array - array[..., :1]


def _lanes(site: CommandSite, numbers: Numbers, burst_bytes: int) -> tuple[int, int, int]:
    """Return how many elements, bursts and runs one program touches in one iteration."""
    command = site.command
    assert isinstance(command, DmaRead | DmaWrite | Atomic)
    access = access_of(command)
    rank = len(access.shape)
    addresses = numbers.known(access.offset, rank)
    if site.gather is not None:
        addresses = addresses + numbers.of(site.gather).array
    if isinstance(command.mask, Predicate):
        held = numbers.known(command.mask, rank)
    else:
        held = numbers.of(site.mask).array if site.mask is not None else np.ones(())
    return count_lanes(addresses, held, access.dtype.itemsize, burst_bytes)


def count_lanes(
    addresses: Array, held: Array, itemsize: int, burst_bytes: int
) -> tuple[int, int, int]:
    """Return elements, bursts and runs under the addresses of a tile where a mask holds.

    Arrays may have length 1 along an axis where nothing varies. Elements that are the same along
    a whole axis (a broadcast) are one.
    """
    held = np.broadcast_to(held, np.broadcast_shapes(held.shape, addresses.shape))
    if not held.any():
        return 0, 0, 0
    addresses = np.broadcast_to(addresses, held.shape)
    lanes = np.where(held, addresses - addresses[held].min(), -1)
    for axis in range(lanes.ndim):
        if lanes.shape[axis] > 1:
            marks = fold(lanes, tuple(range(lanes.ndim)), (axis,))
            _, first = np.unique(marks, return_index=True)
            if len(first) < len(marks):
                lanes = lanes.take(first, axis=axis)
    starts = np.sort(lanes[lanes >= 0])
    elements = len(starts)
    return elements, *spans(starts, itemsize, burst_bytes)


def _mean(samples: Sequence[tuple[int, int, int]], tile: DmaTile) -> TouchedBytes:
    """Return what the samples move on average, in whole elements and bursts."""
    elements, bursts, runs = (sum(pair) for pair in zip(*samples, strict=True))
    useful = -(-elements // len(samples)) * tile.itemsize
    moved = -(-bursts // len(samples)) * tile.burst_bytes
    return TouchedBytes(useful, moved, elements * tile.itemsize // max(runs, 1))
