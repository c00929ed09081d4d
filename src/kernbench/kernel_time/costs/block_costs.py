"""What a GPU makes of a program: how many an SM holds, and what its warps cost.

See docs/model/kernels.md.

A program is a block of ``num_warps`` warps. Its registers, its shared memory and its warps decide
how many blocks an SM holds at a time. With one block, whose barriers keep its warps in step, or
with one warp per scheduler, products and vector math alternate instead of overlapping.
"""

from __future__ import annotations

import math
from fractions import Fraction

from kernbench.commands import Reduce
from kernbench.hardware import SipSpec, WarpSpec, ceil_ps
from kernbench.kernel_ir import (
    NO_CUDA,
    MatrixUnit,
    lies_across,
    log2,
    matrix_unit,
    multiplies_as_float16,
    reduced_bits,
)
from kernbench.kernel_time.conditions import ThreadBlock
from kernbench.kernel_time.costs.shared_cache import SharedCache, kept_share, still_there
from kernbench.kernel_time.program.timed_plan import Chained

_REGISTER_STEP = 8
"""Registers of a thread come in steps of so many."""
_OWN_CACHE_BYTES = 28 * 1024
"""What never becomes shared memory: of 192 KiB on 8.0, of 256 KiB on 9.0, of 128 KiB on 8.9."""
_GROUP_ROWS, _MOST_INSTRUCTION_COLUMNS = 64, 256
_MMA_ROWS, _MMA_COLUMNS, _MMA_BYTES = 16, 8, 32
"""The shape of one ``mma`` instruction: rows, columns, and bytes along K."""
_MFMA_ROWS, _STAGES_APART = 32, 2
_MMA_CYCLES = 25
"""From one to the next that adds to its result. Source: Sun et al., Dissecting Tensor Cores via
Microbenchmarks, 2022: m16n8k16 and m16n8k32 on an A100."""
_CONVERTED_AT_ONCE = 2
"""8-bit floats that one instruction makes float16."""
_LOOP_PASSES, _PASSES = 2, 4
"""How often a spilled register crosses in a run of a loop's body, where it is stored and read back,
and in a program without a loop: before and after the reduction and what is done with its result.
Source: ptxas of CUDA 12.9 for 8.0 and 9.0 on 52 tiles of attention and of products with scales."""
_LEFT_REGISTERS, _ALL_PASSES, _ROOM_OF_SPILLED = 32, 8, 2
"""Where a tile alone needs more registers than there are, in a program without a loop, ptxas leaves
threads 32 and keeps all that is live in memory, in twice the room, from where it crosses 8 times.
Source: ptxas of CUDA 12.9 for 9.0 on softmax, layer norm and additions of 16,384 to 65,536 elements
with 1 to 8 warps (``tests/kernel_ir/analysis/test_registers.py``): 32 registers, in blocks of one
warp 64; 5 to 10 crossings and 1.8 to 2.4 times the room."""
_PRODUCT_CYCLES = 100
"""From the last operand in shared memory to a product's result: a barrier, fragments, the unit.
Source: 30 cycles each, Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture, 2024."""
_LAYOUT_CYCLES = 90
"""What a vector takes to the threads that have its elements in a tile: it is written to shared
memory, and after a barrier read. Source: 30 cycles each, as above; code of Triton 3.9 for 8.0 does
so with each vector that a loop loads and broadcasts."""
_TENSOR_MEMORY, _TENSOR_MEMORY_CYCLES = 100, 150
"""From that architecture on, results of products that all warps make are in memory of their own:
assumed, for the barrier that says so and the loads from there."""
_CROSSING_EXCHANGES = 26
"""What a value takes that goes to other warps through shared memory, in exchanges between lanes:
it is written, read, combined, written and read again, by lanes whose addresses lie vectors apart.
Source: GEAK-eval's sorts and products by sums on an MI300X (docs/model/kernels.md)."""
_SHUFFLE_CYCLES, _BARRIER_CYCLES = 24, 60
"""A reduction exchanges halves of a warp, step by step, and then one value per warp."""
_LANES_ACROSS, _LANES_DOWN = 4, 8
"""The lanes that share a row of a product's result, and those that share a column of it."""
_TENSOR_WARPS = 4
"""Warps that have all rows of a group, and of tensor memory, where a thread has a row whole."""


def resident_blocks(block: ThreadBlock, sip: SipSpec) -> int:
    """Return how many programs a PE that counts warps holds at a time, at least one."""
    warps = sip.pe.warps
    assert warps is not None
    registers = min(block.registers, registers_of_thread(block, sip))
    if gives_up(block, sip):
        registers = _LEFT_REGISTERS
    registers = -(-registers // _REGISTER_STEP) * _REGISTER_STEP * warps.lanes * block.num_warps
    shared = sip.tcm_bytes - sip.pe.register_kib * 1024
    return max(
        1,
        min(
            warps.resident_programs,
            warps.resident // block.num_warps,
            sip.pe.register_kib * 256 // registers,
            shared // max(block.shared_bytes + warps.reserved_shared_bytes, 1),
        ),
    )


def registers_of_thread(block: ThreadBlock, sip: SipSpec) -> int:
    """Return how many registers each thread can have: the SM has so many for a whole block."""
    warps = sip.pe.warps
    assert warps is not None
    share = sip.pe.register_kib * 256 // (warps.lanes * block.num_warps)
    return min(warps.thread_registers, share // _REGISTER_STEP * _REGISTER_STEP)


def gives_up(block: ThreadBlock, sip: SipSpec) -> bool:
    """Return whether a GPU's compiler keeps in memory all that is live in a program."""
    is_cuda = block.architecture != NO_CUDA
    return is_cuda and block.tile_registers > registers_of_thread(block, sip)


def spilled_registers(block: ThreadBlock, sip: SipSpec) -> int:
    """Return how many of the registers that each thread would like to have are in memory."""
    if gives_up(block, sip):
        return block.registers
    most = registers_of_thread(block, sip)
    if block.architecture == NO_CUDA and not block.multiplies:
        # Vector instructions reach half of them, matrix instructions all.
        assert sip.pe.warps is not None
        most = min(most, sip.pe.warps.thread_registers // 2)
    return max(0, block.registers - block.spared - most)


class BlockCosts:
    """What the commands of one program cost on a PE that counts warps."""

    def __init__(self, block: ThreadBlock, warps: WarpSpec, sip: SipSpec) -> None:
        self._block, self._warps, self._sip = block, warps, sip
        blocks = self._blocks = resident_blocks(block, sip)
        shared = sip.tcm_bytes - sip.pe.register_kib * 1024
        left = shared - blocks * (block.shared_bytes + warps.reserved_shared_bytes)
        self._own_cache = _OWN_CACHE_BYTES + max(0, left)
        """What shared memory leaves of the memory that it is a part of."""
        resident = block.num_warps * blocks
        spilled = spilled_registers(block, sip) * 4 * warps.lanes * block.num_warps
        passes = _PASSES if block.tile_registers else _LOOP_PASSES
        room, passes = (_ROOM_OF_SPILLED, _ALL_PASSES) if gives_up(block, sip) else (1, passes)
        self._spilled_bytes = spilled * room
        """The room in memory of the registers of all threads of a block."""
        self._crossing_bytes = spilled * passes
        """What crosses to that memory and back in a run of the innermost body."""
        self.slowdown = max(Fraction(1), Fraction(warps.schedulers, resident))
        """Slowdown of engines of which every scheduler has a part, as some have no warp."""

    def alone_ps(self, product_ps: int, math_ps: int, delay_ps: int, *, again: bool) -> float:
        """Return how long one block takes for products, vector math, and results' latency.

        A barrier begins each iteration of its loop, and warps that multiply together end together:
        products and math take turns. Where there is a product ``again``, some of a scheduler's
        warps are at that while others are at math: only their first products, and the last ones of
        the last of them, have no math beside them.
        """
        warps = max(self._block.num_warps // self._warps.schedulers, 1) if again else 1
        alone = 0 if warps > 1 else math_ps
        return delay_ps + max(product_ps + alone, math_ps + product_ps / warps)

    def among_ps(
        self, product_ps: int, math_ps: int, delay_ps: int, *, in_step: bool = False
    ) -> float:
        """Return how long a multiprocessor takes for one of the blocks that it holds.

        A scheduler's warps each go from products to math and to what they wait for, and meet others
        there, of all blocks. With one warp that is the sum, with many the busier of the two. Warps
        of a block that are ``in_step`` go as one.
        Source: mean value analysis of closed queueing networks, Reiser and Lavenberg, 1980.
        """
        schedulers = self._block.num_warps if in_step else self._warps.schedulers
        share = max(self._block.num_warps / schedulers, 1)
        demands = product_ps / share, math_ps / share
        queues = [0.0, 0.0]
        rate = 0.0
        for count in range(1, max(self._block.num_warps * self._blocks // schedulers, 1) + 1):
            times = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
            rate = count / (delay_ps + sum(times))
            queues = [rate * time for time in times]
        return share / rate

    @property
    def cache(self) -> SharedCache:
        """The cache of all SMs as blocks see it, none of which gets what another one loads."""
        return SharedCache(self._sip, self._warps.cache_bandwidth_gbps, fills_apart=True)

    def keeps(self, size: int) -> bool:
        """Return whether an SM's own cache keeps so many bytes of each of its blocks."""
        return size * self._blocks <= self._own_cache

    @property
    def layout_ps(self) -> int:
        """From when a vector is loaded to when a tile's threads have it as its row or column."""
        return self._sip.cycles_ps(_LAYOUT_CYCLES)

    def load_latency_ps(self, of_hbm: bool, fresh: Fraction) -> int:
        """Return how long an idle device takes to serve a load, from HBM or from its cache.

        What is not ``fresh`` comes from the SM's own cache; the average of both.
        """
        warps = self._warps
        far = warps.hbm_latency_cycles if of_hbm else warps.cache_latency_cycles
        return self._sip.cycles_ps(ceil_ps(far * fresh + warps.near_latency_cycles * (1 - fresh)))

    def product_latency_ps(self, rows: int, depth_bytes: int, taken_ps: int) -> int:
        """Return the time from a product's last use of the matrix unit to its result.

        ``depth_bytes`` is what its rows have along K, ``taken_ps`` for how long it has the unit:
        instructions of one warp that add to the same registers wait for each other, and other warps
        use the unit meanwhile.
        """
        block = self._block
        if matrix_unit(block.architecture, block.num_warps, rows) is MatrixUnit.REGISTERS:
            chain = -(-depth_bytes // _MMA_BYTES) * _MMA_CYCLES
            waits = max(0, self._sip.cycles_ps(chain) - taken_ps)
            return self._sip.cycles_ps(_PRODUCT_CYCLES) + waits
        waits = _TENSOR_MEMORY_CYCLES * self._in_tensor_memory(rows)
        return self._sip.cycles_ps(_PRODUCT_CYCLES + waits)

    def held_up_ps(self, num_stages: int) -> int:
        """Return for how long an iteration of a loop of so many stages waits for its loads.

        With more than two, AMD's GPUs move what was loaded ahead from register to register in each
        iteration, which waits for the loads: they and the product take turns.
        """
        waits = self._block.architecture == NO_CUDA and num_stages > _STAGES_APART
        return self.load_latency_ps(of_hbm=False, fresh=Fraction(1)) if waits else 0

    def _in_tensor_memory(self, rows: int) -> bool:
        unit = matrix_unit(self._block.architecture, self._block.num_warps, rows)
        return unit is MatrixUnit.SHARED and self._block.architecture >= _TENSOR_MEMORY

    def exchange_ps(
        self, command: Reduce, elements_per_clock: int, chained: Chained | None = None
    ) -> int:
        """Return what lanes and warps exchange for a reduction, besides its arithmetic.

        What a thread can it combines by itself; then lanes exchange all that is left, half a warp
        with the other half, until one of them has the result, which goes to other warps.
        """
        if not command.vector and (command.scan or len(command.inputs[0].shape) < 2):
            return 0
        among_lanes, among_warps, left = self._exchanged(command, chained)
        crossing = Fraction(_CROSSING_EXCHANGES if among_warps else 0, 1 << among_lanes)
        if not command.vector:
            # Few values, which lie next to each other; each warp combines those of all.
            crossing = Fraction(among_lanes if among_warps else 0)
        cycles = left * (among_lanes + crossing) / elements_per_clock
        return self._sip.cycles_ps(ceil_ps(self.slowdown * cycles))

    def reduce_latency_ps(self, command: Reduce, chained: Chained | None = None) -> int:
        """From a reduction's last instruction to when its result is there."""
        among_lanes, among_warps, _ = self._exchanged(command, chained)
        cycles = _SHUFFLE_CYCLES * among_lanes + (_BARRIER_CYCLES if among_warps else 0)
        # What a product left goes on in its warps: each combines the values of all once more.
        return self._sip.cycles_ps(cycles * (1 if command.vector or not among_warps else 2))

    def _exchanged(self, command: Reduce, chained: Chained | None) -> tuple[int, int, Fraction]:
        """Return how often lanes halve what is left, how often warps do, and what is left."""
        shape, axis = command.inputs[0].shape, command.axis
        size = len(command.inputs) * math.prod(shape)
        if command.vector or command.scan or len(shape) < 2:
            block = shape, axis, command.vector, self._warps.lanes, self._block.num_warps
            within, among_lanes, among_warps = reduced_bits(*block)
            return among_lanes, among_warps, Fraction(size, 1 << within)
        m, n = shape[-2:]
        down, across = self.warps_of(m, n, chained)
        if self._in_tensor_memory(m):
            lanes, warps = 1, self._block.num_warps // _TENSOR_WARPS
        elif axis == len(shape) - 1:
            lanes, warps = _LANES_ACROSS, across
        else:
            lanes, warps = _LANES_DOWN, down
        return log2(lanes), log2(warps), Fraction(size * lanes * warps, shape[axis])

    def warps_of(
        self,
        m: int,
        n: int,
        chained: Chained | None,
    ) -> tuple[int, int]:
        """Return over how many rows and columns of warps the result of a product lies.

        Where a product is a factor of the next, all over its rows, so that it stays where it is, or
        all over its columns (:func:`lies_across`). Source: ``warpsPerTileV2`` and ``V3`` of
        Triton's ``AccelerateMatmul.cpp``.
        """
        warps = self._block.num_warps
        if matrix_unit(self._block.architecture, warps, m) is MatrixUnit.SHARED:
            is_first = chained is not None and not chained.is_last
            down = warps if is_first else max(min(warps, m // _MMA_ROWS), _TENSOR_WARPS)
            return down, warps // down
        if self._block.architecture == NO_CUDA:
            return wave_grid(m, n, warps, self._instruction_tile(m, n)[0])
        if chained is None:
            return warp_grid(m, n, warps)
        return (1, warps) if self.lies_across(chained) else (warps, 1)

    def _instruction_tile(self, m: int, n: int) -> tuple[int, int]:
        """Return the rows and columns of an instruction by which warps multiply from registers.

        AMD's have as many of both as the launch says, or 32 where the product has, else 16.
        Source: ``AccelerateAMDMatmul.cpp`` of Triton.
        """
        if self._block.architecture != NO_CUDA:
            return _MMA_ROWS, _MMA_COLUMNS
        side = self._block.matrix_side or (_MFMA_ROWS if min(m, n) >= _MFMA_ROWS else _MMA_ROWS)
        return side, side

    def lies_across(self, chained: Chained | None) -> bool:
        """Return whether all warps lie over the columns of chained products, and so wait for all.

        What they reduce and multiply next goes through shared memory, with barriers before and
        after.
        """
        if chained is None:
            return False
        shape = chained.rows, chained.columns
        return lies_across(shape, self._block.architecture, self._block.num_warps)

    def repeats(self, shape: tuple[int, ...], chained: Chained | None) -> Fraction:
        """Return how many warps do the same on a tile between products, which has too few rows."""
        if (
            chained is None
            or chained.is_last
            or len(shape) < 2
            or self._in_tensor_memory(shape[-2])
        ):
            return Fraction(1)
        down, _ = self.warps_of(shape[-2], shape[-1], chained)
        return max(Fraction(1), Fraction(down * _MMA_ROWS, shape[-2]))

    @property
    def spill_ps(self) -> int:
        """What one run of the innermost body moves of registers that threads do not have.

        AMD's compiler reads a register back right before its use, and the wave waits.
        """
        cycles = -(-self._crossing_bytes // self._warps.shared_bytes_per_clock)
        if self._block.architecture == NO_CUDA:
            waits = spilled_registers(self._block, self._sip) * _LOOP_PASSES
            cycles = max(cycles, waits * self._warps.cache_latency_cycles)
        return self._sip.cycles_ps(cycles)

    def spills_beyond(self, active: int) -> tuple[Fraction, Fraction]:
        """Return the bytes of one such run that leave the SM, and those of them that reach HBM.

        The SM's own cache holds what the registers of its blocks do not, and the cache of all SMs
        what theirs do not hold, while so many SMs are ``active``. SMs have as many blocks as they
        hold, one where not all SMs have any.
        """
        size = self._spilled_bytes
        if not size:
            return Fraction(0), Fraction(0)
        of_sm = size * (self._blocks if active >= self._sip.num_pes else 1)
        left = 1 - still_there(Fraction(of_sm, self._own_cache))
        missed = Fraction(1)
        if self._sip.cache is not None:
            missed -= kept_share(ceil_ps(of_sm * active * left), self._sip.cache)
        moved = self._crossing_bytes * left
        return moved, moved * missed

    def converts(self, rows: int) -> bool:
        """Return whether 8-bit floats become float16 before products of so many rows."""
        unit = matrix_unit(self._block.architecture, self._block.num_warps, rows)
        return multiplies_as_float16(self._block.architecture, unit)

    def product_ps(
        self,
        sizes: tuple[int, int, int, int],
        itemsize: int,
        flops_per_clock: Fraction,
        converted: bool = False,
        copied_bytes: int = 0,
        chained: Chained | None = None,
    ) -> int:
        """Return the time of products of ``sizes`` (how many, M, N, K), one after the other.

        The matrix unit's time for whole instructions of all warps, or longer where shared memory
        cannot deliver what they read: rows and columns of A and B that several warps need, or
        instructions that need them, are read by each, and ``converted`` by each. Meanwhile loads
        write ``copied_bytes`` of the next factors there, through the same ports. What an earlier
        product left in the registers of the warps that need it is not read.
        """
        count, m, n, k = sizes
        conversion = Fraction(0)
        warps, architecture = self._block.num_warps, self._block.architecture
        if matrix_unit(architecture, warps, m) is MatrixUnit.SHARED:
            down, across = self.warps_of(m, n, chained)
            columns = min(max(n // across, _MMA_COLUMNS), _MOST_INSTRUCTION_COLUMNS)
            rows = max(-(-m // _GROUP_ROWS) * _GROUP_ROWS, down * _MMA_ROWS)
            width = -(-n // columns) * columns
            of_first, of_second = rows * (width // columns), width * (rows // _GROUP_ROWS)
            share = Fraction(1)
        else:
            tile = self._instruction_tile(m, n)
            down, across = self.warps_of(m, n, chained)
            rows = -(-m // (tile[0] * down)) * tile[0] * down
            width = -(-n // (tile[1] * across)) * tile[1] * across
            of_first, of_second = rows * across, width * down
            share = self._warps.mma_share
        reads = of_second + (
            of_first if chained is None or not chained.is_last or across > 1 else 0
        )
        if converted:
            rate = self._sip.pe.math.elements_per_clock.convert
            conversion = self.slowdown * Fraction(reads * k, rate * _CONVERTED_AT_ONCE)
        depth = -(-k // _MMA_ROWS) * _MMA_ROWS
        flops = flops_per_clock * self._sip.pe.gemm.efficiency * share
        math = self.slowdown * 2 * rows * width * depth / flops
        crossing = count * reads * k * itemsize + copied_bytes
        shared = Fraction(crossing, self._warps.shared_bytes_per_clock)
        return self._sip.cycles_ps(ceil_ps(max(count * max(math, conversion), shared)))


def warp_grid(m: int, n: int, num_warps: int) -> tuple[int, int]:
    """Return over how many rows and columns of warps Triton lays a product's tile on CUDA's GPUs.

    It doubles the side on which warps have more instructions left; rows where both have as many.
    """
    down = across = 1
    while down * across < num_warps:
        if m * across * _MMA_COLUMNS >= n * down * _MMA_ROWS:
            down *= 2
        else:
            across *= 2
    return down, across


def wave_grid(m: int, n: int, num_waves: int, side: int) -> tuple[int, int]:
    """Return the same of AMD's GPUs, whose instructions have ``side`` rows and columns.

    Waves that a tile has no part for lie over its rows, and repeat what others do. Source:
    ``warpsPerTile`` of Triton's ``AccelerateAMDMatmul.cpp``.
    """
    down = across = 1
    while down * across < num_waves:
        if down * side < m and m // (2 * side) // down >= n // side // across:
            down *= 2
        else:
            across *= 2
    return (across, down) if across * side > n else (down, across)
