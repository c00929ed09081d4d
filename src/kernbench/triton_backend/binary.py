"""A compiled kernel as a run sees it: its TTIR, read once, and what it needs of a PE."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from triton.runtime.errors import OutOfResources

from kernbench.commands import KernelTrace
from kernbench.errors import OutOfMemoryError, UsageError
from kernbench.kernel_ir import (
    NO_CUDA,
    MatrixUnit,
    Module,
    TcmTile,
    TcmUse,
    evaluate,
    matrix_unit,
    parse_module,
    tcm_use,
)
from kernbench.kernel_time import ThreadBlock

_MOST_LISTED = 5
MOST_THREADS = 1024
"""The most threads of one block, on GPUs of NVIDIA and of AMD."""


class Room(Protocol):
    """What knows the PE that a program would run on."""

    cuda_architecture: int | None
    counts_warps: bool
    """Whether it holds threads in warps, and their registers spill."""
    warp_lanes: int
    """Threads of a warp; 0 where it holds none."""

    def tcm_capacity_bytes(self) -> int:
        """Return the TCM of one PE of the current rank's SIP."""

    def shared_memory_bytes(self) -> int:
        """Return what host code is told of it: what one program may have for loads."""


@dataclass(frozen=True, eq=False)
class KernelBinary:
    """One specialisation of a kernel with its launch options. Identity is the object itself."""

    name: str
    module: Module
    """Shared by all binaries with the same TTIR text."""
    num_warps: int
    num_stages: int
    signature: tuple[str, ...]
    """Triton's type of each parameter of the TTIR function, such as ``*fp16`` or ``i32``."""
    tcm: TcmUse
    constants: tuple[tuple[str, str], ...]
    """Name and value of each parameter that is gone in TTIR: ``tl.constexpr``, 1 and None."""
    ttir: str
    stands_for_library: bool = False
    """Whether it is a kernel of ``kernbench.ops``, in place of a vendor's."""
    matrix_side: int = 0
    """Rows and columns of AMD's matrix instructions, ``matrix_instr_nonkdim``; 0: by the tile."""

    def planned_by(self, counts_warps: bool) -> Hashable:
        """Return what determines a launch's commands and schedule besides its arguments.

        Equal for binaries that differ in ``num_warps`` only, unless PEs know what a warp is.
        """
        warps = self.num_warps if counts_warps and not self.stands_for_library else None
        side = self.matrix_side if counts_warps else 0
        return self.name, self.module, self.num_stages, self.constants, warps, side

    def trace(
        self, grid: tuple[int, int, int], ints: Mapping[int, int], **options: Any
    ) -> KernelTrace:
        """Return what a launch does, by :func:`kernbench.kernel_ir.evaluate`."""
        options |= {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return evaluate(self.module, grid, ints, **options)

    def check_room(self, pe: Room) -> None:
        """Refuse a PE whose TCM, or the part of it for loads, is too small for one program.

        Raises:
            TcmExhaustedError: ``triton.autotune`` takes it as "not this config".
            ThreadsExhaustedError: Its warps have more threads than a block of a GPU; likewise.
        """
        threads = self.num_warps * pe.warp_lanes
        if threads > MOST_THREADS:
            raise ThreadsExhaustedError(threads, self.num_warps, self.name)
        tcm = self.tcm
        architecture = pe.cuda_architecture
        if architecture is None and pe.counts_warps:
            architecture = NO_CUDA
        # Threads of a GPU spill what their registers do not hold.
        if tcm.total_bytes > pe.tcm_capacity_bytes() and architecture is None:
            raise self._exhausted(TcmExhaustedError, tcm.tiles, pe.tcm_capacity_bytes())
        limit = pe.shared_memory_bytes()
        # No PE needs more than that, so that most launches look no further.
        if (tcm.staged_bytes if architecture is None else tcm.most_shared_bytes) > limit:
            tiles = tcm.shared_tiles(architecture, self.num_warps)
            if sum(tile.total_bytes for tile in tiles) > limit:
                raise self._exhausted(SharedMemoryExhaustedError, tiles, limit)

    def _exhausted(
        self, error: type[TcmExhaustedError], tiles: tuple[TcmTile, ...], limit: int
    ) -> TcmExhaustedError:
        required = sum(tile.total_bytes for tile in tiles)
        return error(required, limit, self.name, self.num_stages, describe_largest(tiles))

    def thread_block(self, architecture: int, lanes: int) -> ThreadBlock | None:
        """Return what a program is to a GPU, None if its compiler's choices are not to be judged.

        That is so for kernels that stand for a library's: theirs were written for the device.
        """
        if self.stands_for_library:
            return None
        tiles = self.tcm.block_tiles(architecture, self.num_warps)
        threads, use = lanes * self.num_warps, self.tcm.registers
        rows = min((rows for rows, _ in use.fragments), default=0)
        unit = matrix_unit(architecture, self.num_warps, rows)
        from_registers = self.num_warps if unit is MatrixUnit.REGISTERS else 0
        across = self.tcm.lies_across(architecture, self.num_warps)
        return ThreadBlock(
            num_warps=self.num_warps,
            registers=use.per_thread(threads, from_registers),
            tile_registers=use.of_largest_tile(threads),
            shared_bytes=sum(tile.total_bytes for tile in tiles),
            architecture=architecture,
            multiplies=use.multiplies,
            spared=use.spared(threads, from_registers, across=across),
            matrix_side=self.matrix_side,
        )


@functools.cache
def build_binary(
    ttir: str,
    name: str,
    num_warps: int,
    num_stages: int,
    constants: tuple[tuple[str, str], ...] = (),
    stands_for_library: bool = False,
    matrix_side: int = 0,
) -> KernelBinary:
    """Return the binary of a TTIR text, the same object for the same arguments."""
    module = read_module(ttir)
    signature = tuple(
        f"{'*' if param.is_pointer else ''}{param.dtype.triton if param.dtype else param.type}"
        for param in module.kernel.params
    )
    tcm = tcm_use(module, num_stages)
    options = stands_for_library, matrix_side
    return KernelBinary(
        name, module, num_warps, num_stages, signature, tcm, constants, ttir, *options
    )


@functools.cache
def read_module(ttir: str) -> Module:
    """Return the parsed text, the same object for the same text: traces are memoised by it."""
    return parse_module(ttir)


class TcmExhaustedError(OutOfMemoryError, OutOfResources):  # type: ignore[misc]  # no types there
    """The tiles of one program do not fit in a PE's TCM; names the largest, with their lines."""

    memory = "TCM"

    def __init__(
        self, required: int, limit: int, kernel: str, num_stages: int, largest: tuple[str, ...]
    ) -> None:
        Exception.__init__(self, required, limit, kernel, num_stages, largest)
        self.required = required
        self.limit = limit
        self.name = self.memory
        self.kernel = kernel
        self.num_stages = num_stages
        self.largest = largest

    def __str__(self) -> str:
        lines = [
            f"{self.memory} is exhausted: kernel {self.kernel} needs {self.required:,} bytes with "
            f"num_stages={self.num_stages}, {self.limit:,} of {self.limit:,} are free; use smaller "
            "blocks or fewer stages; the largest tiles:"
        ]
        return "\n".join([*lines, *(f"  {tile}" for tile in self.largest)])

    def __reduce__(self) -> tuple[type[TcmExhaustedError], tuple[object, ...]]:
        return type(self), self.args


class SharedMemoryExhaustedError(TcmExhaustedError):
    """The loads of one program that run ahead do not fit in the part of TCM that is for loads."""

    memory = "shared memory"

    def __str__(self) -> str:
        lines = [
            f"out of resource: {self.memory}, Required: {self.required}, Hardware limit: "
            f"{self.limit}. Reducing block sizes or `num_stages` may help.",
            f"kernel {self.kernel} with num_stages={self.num_stages}; its largest tiles there:",
        ]
        return "\n".join([*lines, *(f"  {tile}" for tile in self.largest)])


class ThreadsExhaustedError(UsageError, OutOfResources):  # type: ignore[misc]  # no types there
    """The warps of one program have more threads than a block of a GPU can."""

    def __init__(self, required: int, num_warps: int, kernel: str) -> None:
        Exception.__init__(self, required, num_warps, kernel)
        self.required, self.limit, self.name = required, MOST_THREADS, "threads"
        self.num_warps, self.kernel = num_warps, kernel

    def __str__(self) -> str:
        return (
            f"out of resource: threads, Required: {self.required}, Hardware limit: {self.limit}. "
            "Reducing block sizes or `num_stages` may help.\n"
            f"kernel {self.kernel} with num_warps={self.num_warps}; use "
            f"{self.num_warps * self.limit // self.required} or fewer"
        )

    def __reduce__(self) -> tuple[type[ThreadsExhaustedError], tuple[object, ...]]:
        return type(self), self.args


def describe_largest(tiles: tuple[TcmTile, ...]) -> tuple[str, ...]:
    """Return a line for each of the five largest tiles, and one for all others."""
    ordered = sorted(tiles, key=lambda tile: -tile.total_bytes)
    largest, others = ordered[:_MOST_LISTED], ordered[_MOST_LISTED:]
    lines = [_describe(tile) for tile in largest]
    if others:
        rest = sum(tile.total_bytes for tile in others)
        lines.append(f"{rest:>12,} bytes  {len(others)} smaller tiles")
    return tuple(lines)


def _describe(tile: TcmTile) -> str:
    times = f" ({tile.copies} x {tile.size_bytes:,})" if tile.copies > 1 else ""
    return f"{tile.size_bytes * tile.copies:>12,} bytes{times}  {tile.what} at {tile.line}"
