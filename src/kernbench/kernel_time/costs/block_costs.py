"""What a GPU makes of a program: how many an SM holds, and what its warps cost (ADR-0136).

A program is a block of ``num_warps`` warps. Its registers, its shared memory and its warps decide
how many blocks an SM holds at a time. With one block, whose barriers keep its warps in step, or
with one warp per scheduler, products and vector math alternate instead of overlapping.
"""

from __future__ import annotations

from fractions import Fraction

from kernbench.hardware import SipSpec, WarpSpec, ceil_ps
from kernbench.kernel_ir import MatrixUnit, matrix_unit
from kernbench.kernel_time.conditions import ThreadBlock

_WARP = 32
_REGISTER_STEP = 8
"""Registers of a thread come in steps of so many."""
_RESERVED_BYTES = 1024
"""Shared memory that the system takes of each block, from 8.0 on."""
_GROUP_ROWS = 64
_MMA_ROWS, _MMA_COLUMNS = 16, 8
_MOST_INSTRUCTION_COLUMNS = 256
_SPILL_PASSES = 4
"""How often a spilled register crosses to memory and back in each run of a loop's body: before and
after the product, and before and after what is done with it."""
_PRODUCT_CYCLES = 64
"""From the last operand in shared memory to a product's result: fragments, the unit, a barrier."""
_SHUFFLE_CYCLES, _SHUFFLES, _BARRIER_CYCLES = 24, 5, 60
"""A reduction exchanges halves of a warp, step by step, and then one value per warp."""


def resident_blocks(block: ThreadBlock, sip: SipSpec) -> int:
    """Return how many programs a PE that counts warps holds at a time, at least one."""
    warps = sip.pe.warps
    assert warps is not None
    registers = min(block.registers, warps.thread_registers)
    registers = -(-registers // _REGISTER_STEP) * _REGISTER_STEP * _WARP * block.num_warps
    shared = sip.tcm_bytes - sip.pe.register_kib * 1024
    return max(
        1,
        min(
            warps.resident_programs,
            warps.resident // block.num_warps,
            sip.pe.register_kib * 256 // registers,
            shared // (block.shared_bytes + _RESERVED_BYTES),
        ),
    )


class BlockCosts:
    """What the commands of one program cost on a PE that counts warps."""

    def __init__(self, block: ThreadBlock, warps: WarpSpec, sip: SipSpec) -> None:
        self._block, self._warps, self._sip = block, warps, sip
        blocks = resident_blocks(block, sip)
        resident = block.num_warps * blocks
        self.slowdown = max(Fraction(1), Fraction(warps.schedulers, resident))
        """Of engines of which every scheduler has a part, as some schedulers have no warp."""
        # Barriers keep the warps of one block in step.
        self.in_turns = blocks < 2 or resident < 2 * warps.schedulers
        """Whether products and vector math of one program take turns."""

    @property
    def product_latency_ps(self) -> int:
        """From a product's last use of the matrix unit to when its result is there."""
        return self._sip.cycles_ps(_PRODUCT_CYCLES)

    @property
    def reduce_latency_ps(self) -> int:
        """From a reduction's last instruction to when its result is there."""
        crossing = _BARRIER_CYCLES if self._block.num_warps > 1 else 0
        return self._sip.cycles_ps(_SHUFFLE_CYCLES * _SHUFFLES + crossing)

    @property
    def spill_ps(self) -> int:
        """What one run of the innermost body moves of registers that threads do not have."""
        spilled = max(0, self._block.registers - self._warps.thread_registers)
        size = spilled * 4 * _WARP * self._block.num_warps * _SPILL_PASSES
        return self._sip.cycles_ps(-(-size // self._warps.shared_bytes_per_clock))

    def product_ps(
        self, sizes: tuple[int, int, int, int], itemsize: int, flops_per_clock: Fraction
    ) -> int:
        """Return the time of products of ``sizes`` (how many, M, N, K), one after the other.

        The matrix unit's time for whole instructions of all warps, or longer where shared memory
        cannot deliver what they read: rows and columns of A and B that several warps need, or
        instructions that need them, are read by each.
        """
        count, m, n, k = sizes
        unit = matrix_unit(self._block.architecture, self._block.num_warps, m)
        if unit is MatrixUnit.SHARED:
            groups = self._block.num_warps // 4
            across = max(1, groups * _GROUP_ROWS // m)
            columns = min(max(n // across, _MMA_COLUMNS), _MOST_INSTRUCTION_COLUMNS)
            rows = -(-m // _GROUP_ROWS) * _GROUP_ROWS
            width = -(-n // columns) * columns
            reads = rows * (width // columns) + width * (rows // _GROUP_ROWS)
            share = Fraction(1)
        else:
            down, across = warp_grid(m, n, self._block.num_warps)
            rows = -(-m // (_MMA_ROWS * down)) * _MMA_ROWS * down
            width = -(-n // (_MMA_COLUMNS * across)) * _MMA_COLUMNS * across
            reads = rows * across + width * down
            share = self._warps.mma_share
        depth = -(-k // _MMA_ROWS) * _MMA_ROWS
        rate = flops_per_clock * self._sip.pe.gemm.efficiency * share
        math = self.slowdown * 2 * rows * width * depth / rate
        shared = Fraction(reads * k * itemsize, self._warps.shared_bytes_per_clock)
        return self._sip.cycles_ps(ceil_ps(count * max(math, shared)))


def warp_grid(m: int, n: int, num_warps: int) -> tuple[int, int]:
    """Return over how many rows and columns of warps Triton lays a product's tile.

    It doubles the side on which warps have more instructions left, of 16 rows and 8 columns; rows
    where both have as many.
    """
    down = across = 1
    while down * across < num_warps:
        if m * across * _MMA_COLUMNS >= n * down * _MMA_ROWS:
            down *= 2
        else:
            across *= 2
    return down, across
