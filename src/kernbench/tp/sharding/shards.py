"""The block of a weight that each tensor-parallel rank holds, and how weights are resharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import UsageError


def divide(numerator: int, denominator: int, what: str, by: str) -> int:
    """Return ``numerator // denominator``; a remainder is refused with both numbers.

    >>> divide(4096, 8, "out_features", "tensor parallel size")
    512
    """
    if denominator < 1:
        raise UsageError(f"{by} must be at least 1, but got {denominator}")
    if numerator < 1:
        raise UsageError(f"{what} must be at least 1, but got {numerator}")
    if numerator % denominator:
        raise UsageError(
            f"{what} ({numerator}) must be divisible by {by} ({denominator}); "
            f"the nearest sizes that are: {_nearest_multiples(numerator, denominator)}"
        )
    return numerator // denominator


def check_rank(rank: int, size: int) -> None:
    """Refuse a rank that is not in a group of ``size`` ranks."""
    if not 0 <= rank < size:
        raise UsageError(f"rank must be from 0 to {size - 1}, but got {rank} of {size} ranks")


@dataclass(frozen=True)
class ShardRange:
    """Indices ``[start, stop)`` of a dim."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


def shard_range(size: int, tp_size: int, rank: int, what: str = "size") -> ShardRange:
    """Return the indices of a dim that ``rank`` holds when ``tp_size`` ranks share it evenly.

    >>> shard_range(1024, 2, 1)
    ShardRange(start=512, stop=1024)
    """
    check_rank(rank, tp_size)
    local = divide(size, tp_size, what, "tensor parallel size")
    return ShardRange(rank * local, (rank + 1) * local)


@dataclass(frozen=True)
class FusedPart:
    """One of the matrices that are fused along the split dim of a weight.

    Attributes:
        size: Length along the split dim, over all ranks.
        unit: Indices that stay together (``head_dim`` for a head).
        replicable: With more ranks than units, ``tp_size // num_units`` neighbouring ranks hold
            the same unit; otherwise such a split is refused.
        name: How errors call what is counted, e.g. ``num_kv_heads``.
    """

    size: int
    unit: int = 1
    replicable: bool = False
    name: str = "size"

    def __post_init__(self) -> None:
        divide(self.size, self.unit, f"the size of {self.name}", "its unit")

    @property
    def num_units(self) -> int:
        return self.size // self.unit

    def num_replicas(self, tp_size: int) -> int:
        """Return how many ranks hold the same block: 1 unless there are fewer units than ranks."""
        if self.replicable and 0 < self.num_units < tp_size and tp_size % self.num_units == 0:
            return tp_size // self.num_units
        divide(self.num_units, tp_size, self.name, "tensor parallel size")
        return 1

    def block(self, tp_size: int, rank: int) -> ShardRange:
        """Return the indices of this part that ``rank`` holds."""
        check_rank(rank, tp_size)
        replicas = self.num_replicas(tp_size)
        local = self.size * replicas // tp_size
        first = rank // replicas
        return ShardRange(first * local, (first + 1) * local)


@dataclass(frozen=True)
class ShardSpec:
    """How one weight is split over ``tp_size`` ranks.

    Attributes:
        shape: Shape of the full weight.
        dim: The dim that is split; None for a weight that every rank holds whole.
        tp_size: Ranks that share it.
        parts: What is fused along ``dim``, in order: a full weight is ``[q | k | v]`` and a shard
            is ``[q_rank | k_rank | v_rank]``. Empty: one part.
    """

    shape: tuple[int, ...]
    dim: int | None
    tp_size: int
    parts: tuple[FusedPart, ...] = ()

    def __post_init__(self) -> None:
        if self.tp_size < 1:
            raise UsageError(f"tensor parallel size must be at least 1, but got {self.tp_size}")
        if self.dim is None:
            if self.parts:
                raise UsageError("a weight that is not split has no parts, but got some")
            return
        if not 0 <= self.dim < len(self.shape):
            raise UsageError(
                f"dim must be from 0 to {len(self.shape) - 1} for shape {self.shape}, "
                f"but got {self.dim}"
            )
        length = self.shape[self.dim]
        if not self.parts:
            object.__setattr__(self, "parts", (FusedPart(length),))
        fused = sum(part.size for part in self.parts)
        if fused != length:
            raise UsageError(
                f"the parts of dim {self.dim} have {fused} indices in total, "
                f"but shape {self.shape} has {length} there"
            )
        for part in self.parts:
            part.num_replicas(self.tp_size)

    def blocks(self, rank: int) -> tuple[ShardRange, ...]:
        """Return the indices along ``dim`` that ``rank`` holds, one range per part."""
        check_rank(rank, self.tp_size)
        blocks = []
        offset = 0
        for part in self.parts:
            block = part.block(self.tp_size, rank)
            blocks.append(ShardRange(offset + block.start, offset + block.stop))
            offset += part.size
        return tuple(blocks)

    def local_shape(self) -> tuple[int, ...]:
        """Return the shape of one rank's shard, which is the same on every rank."""
        if self.dim is None:
            return self.shape
        local = sum(block.size for block in self.blocks(0))
        return (*self.shape[: self.dim], local, *self.shape[self.dim + 1 :])

    def num_local_elements(self) -> int:
        """Return how many elements one rank holds."""
        return int(np.prod(self.local_shape(), dtype=np.int64))

    def with_tp_size(self, tp_size: int) -> ShardSpec:
        """Return the same weight split over another number of ranks."""
        return ShardSpec(self.shape, self.dim, tp_size, self.parts)


def column_parallel(
    in_features: int, out_features: int, tp_size: int, parts: tuple[FusedPart, ...] = ()
) -> ShardSpec:
    """Return the split of an ``(in_features, out_features)`` weight along its columns."""
    parts = parts or (FusedPart(out_features, name="out_features"),)
    return ShardSpec((in_features, out_features), 1, tp_size, parts)


def row_parallel(
    in_features: int, out_features: int, tp_size: int, parts: tuple[FusedPart, ...] = ()
) -> ShardSpec:
    """Return the split of an ``(in_features, out_features)`` weight along its rows."""
    parts = parts or (FusedPart(in_features, name="in_features"),)
    return ShardSpec((in_features, out_features), 0, tp_size, parts)


def check_full_shape(full: Array, spec: ShardSpec) -> None:
    """Refuse an array that is not the whole weight.

    Raises:
        UsageError: The shape is another one.
    """
    if full.shape != spec.shape:
        raise UsageError(f"the full weight must have shape {spec.shape}, but got {full.shape}")


def extract(full: Array, spec: ShardSpec, rank: int) -> Array:
    """Return a copy of the shard of ``full`` that ``rank`` holds."""
    check_rank(rank, spec.tp_size)
    check_full_shape(full, spec)
    if spec.dim is None:
        return full.copy()
    pieces = [full[_along(spec.dim, block)] for block in spec.blocks(rank)]
    return np.concatenate(pieces, axis=spec.dim)


def merge(shards: Sequence[Array], spec: ShardSpec) -> Array:
    """Return the full weight of the ranks' shards, in rank order.

    Raises:
        UsageError: A shard is missing or has another shape or dtype, or two ranks that must hold
            the same block hold different bits.
    """
    _check_shards(shards, spec)
    full = np.empty(spec.shape, shards[0].dtype)
    for move in plan_reshard(spec, 1):
        full[_along(spec.dim, move.dst)] = shards[move.src_rank][_along(spec.dim, move.src)]
    _check_replicas(shards, spec, full)
    return full


@dataclass(frozen=True)
class ShardMove:
    """Indices ``src`` of one rank's shard become indices ``dst`` of another's."""

    src_rank: int
    src: ShardRange
    dst_rank: int
    dst: ShardRange


def plan_reshard(spec: ShardSpec, to_tp: int) -> tuple[ShardMove, ...]:
    """Return the moves after which ``to_tp`` ranks hold the weight that ``spec`` splits.

    Every index of every new shard is written exactly once. Where several ranks hold a block, it
    is taken from the first of them.
    """
    target = spec.with_tp_size(to_tp)
    if spec.dim is None:
        whole = ShardRange(0, spec.shape[0] if spec.shape else 1)
        return tuple(ShardMove(0, whole, rank, whole) for rank in range(to_tp))
    moves = []
    for dst_rank in range(to_tp):
        dst_offset = src_offset = 0
        for index, part in enumerate(spec.parts):
            wanted = target.blocks(dst_rank)[index]
            for src_rank in range(0, spec.tp_size, part.num_replicas(spec.tp_size)):
                held = spec.blocks(src_rank)[index]
                start, stop = max(wanted.start, held.start), min(wanted.stop, held.stop)
                if start < stop:
                    src = ShardRange(start - held.start, stop - held.start)
                    dst = ShardRange(start - wanted.start, stop - wanted.start)
                    moves.append(
                        ShardMove(
                            src_rank, _shift(src, src_offset), dst_rank, _shift(dst, dst_offset)
                        )
                    )
            src_offset += spec.blocks(0)[index].size
            dst_offset += wanted.size
    return tuple(moves)


def reshard(shards: Sequence[Array], spec: ShardSpec, to_tp: int) -> list[Array]:
    """Return the shards of ``to_tp`` ranks, bitwise equal to those of a fresh split.

    The full weight is never formed. Raises what :func:`merge` raises, but does not compare
    replicas.
    """
    _check_shards(shards, spec)
    local_shape = spec.with_tp_size(to_tp).local_shape()
    moved = [np.empty(local_shape, shards[0].dtype) for _ in range(to_tp)]
    for move in plan_reshard(spec, to_tp):
        source = shards[move.src_rank][_along(spec.dim, move.src)]
        moved[move.dst_rank][_along(spec.dim, move.dst)] = source
    return moved


def _nearest_multiples(size: int, divisor: int) -> str:
    below = size // divisor * divisor
    return f"{below} and {below + divisor}" if below else f"{divisor}"


def _shift(block: ShardRange, offset: int) -> ShardRange:
    return ShardRange(block.start + offset, block.stop + offset)


def _along(dim: int | None, block: ShardRange) -> tuple[Any, ...]:
    return (...,) if dim is None else (slice(None),) * dim + (block.slice,)


def _check_shards(shards: Sequence[Array], spec: ShardSpec) -> None:
    if len(shards) != spec.tp_size:
        raise UsageError(f"{spec.tp_size} ranks share the weight, but got {len(shards)} shards")
    for rank, shard in enumerate(shards):
        if shard.shape != spec.local_shape() or shard.dtype != shards[0].dtype:
            raise UsageError(
                f"a shard must have shape {spec.local_shape()} and dtype {shards[0].dtype}, "
                f"but rank {rank} has {shard.shape} {shard.dtype}"
            )


def _check_replicas(shards: Sequence[Array], spec: ShardSpec, full: Array) -> None:
    for rank, shard in enumerate(shards):
        # Bytes, so that a NaN equals itself and -0.0 differs from 0.0.
        if extract(full, spec, rank).tobytes() != shard.tobytes():
            raise UsageError(
                f"rank {rank} holds other values than the first rank that shares its block; "
                "sum the replicas' gradients before the update"
            )
