"""The fastest tile of a product, by timing the kernel of the library with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from kernbench.commands import KernelTrace, MathClass
from kernbench.dtypes import DType, bfloat16, float32
from kernbench.errors import MachineError
from kernbench.hardware import Machine, SipSpec, ps_per_byte
from kernbench.kernel_time import (
    Conditions,
    SharedCache,
    dot_ps,
    kernel_duration_ps,
    math_ps,
    resident_programs,
)
from kernbench.library_kernels import stretch
from kernbench.ops import (
    GemmTile,
    KernelProbe,
    ProbePointer,
    in_stages,
    library_tiles,
    product_call,
    sum_parts_call,
    sum_parts_launch,
    takes_shared_operands,
)
from kernbench.triton_backend import activate

Cached = tuple[tuple[int, Fraction], ...]
"""Cached shares of a launch's parameters, by their index."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``C[m, n] = A[m, k] @ B[k, n]`` of one dtype."""

    m: int
    n: int
    k: int
    dtype: DType

    @property
    def out(self) -> DType:
        return bfloat16 if self.dtype.itemsize == 1 else self.dtype

    @property
    def input_bytes(self) -> int:
        return self.m * self.k * self.dtype.itemsize

    @property
    def weight_bytes(self) -> int:
        return self.k * self.n * self.dtype.itemsize


_PART_BYTES = 4
"""The bytes of an element of a partial C, with split-K."""


@dataclass(frozen=True, slots=True)
class _LeastProgram:
    """The least times of one program, on its PE and on shared resources."""

    loop_ps: float
    """The time from its start to the end of its last dot."""
    left_ps: float
    """The time from its start until its PE is free of it, with its results under way."""
    end_ps: float
    """The time from its start until its results have arrived, and all its transfers ended."""
    busy_ps: float
    """The time on the busiest queue of its PE, or its share of the cache or of HBM."""


class GemmBounds:
    """Lower bounds of the modeled times of one product on one SIP, by tile.

    ``cached`` is how much of the input (parameter 0) and the weights (1) the cache holds.
    """

    def __init__(self, problem: Problem, sip: SipSpec, cached: Cached = ()) -> None:
        self.problem = problem
        self.sip = sip
        self._shared = SharedCache(sip)
        warm = dict(cached)
        a_cold, b_cold = (self._shared.missed(1.0, float(warm.get(param, 0))) for param in (0, 1))
        self._cold = a_cold, b_cold
        self._rate = Fraction(sip.gemm_flops_per_clock(problem.dtype.name))
        self._port = float(ps_per_byte(sip.pe.dma_port_gbps))
        self._hbm = float(ps_per_byte(sip.hbm_gbps))
        self._cache = 0.0 if sip.cache is None else float(ps_per_byte(sip.cache.bandwidth_gbps))
        self._issue_ps = sip.cycles_ps(sip.pe.dma_issue_cycles)
        self._far_ps = float(sip.cube.hbm_latency_ns) * 1000
        self._near_ps = self._far_ps
        if sip.cache is not None:
            self._near_ps = min(self._far_ps, float(sip.cache.latency_ns) * 1000)

    def least_ps(self, tile: GemmTile) -> int:
        """Return a lower bound of the time of the product with a tile, including split-K's sum."""
        sip, problem = self.sip, self.problem
        tiles, parts = tile.grid(problem.m, problem.n)
        programs = tiles * parts
        size = problem.m * problem.n
        stored = (
            size * _PART_BYTES * tile.split_k if tile.split_k > 1 else size * problem.out.itemsize
        )
        a_slow, b_slow, c_slow = self._slowdowns(tile)
        moved = problem.input_bytes * self._cold[0] * a_slow
        moved += problem.weight_bytes * self._cold[1] * b_slow
        moved += stored * self._cold_results(tile) * c_slow
        cool_ps = max(
            self._in_waves_ps(tile, programs),
            self._served_ps(tile, programs, stored),
            moved * self._hbm,
        )
        total = sip.front_end_ps + self._hot_ps(tile, programs, cool_ps)
        if tile.split_k > 1:
            total += sip.queued_front_end_ps + self._sum_ps(tile.split_k)
        return int(total)

    def _in_waves_ps(self, tile: GemmTile, programs: int) -> float:
        """Return the end of the last wave if each wave takes as long as its shortest program."""
        problem, num_pes = self.problem, self.sip.num_pes
        # In program order: full waves, and a last one of as many programs or fewer.
        before, active = divmod(programs - 1, num_pes)
        rows, columns = -(-problem.m // tile.block_m), -(-problem.n // tile.columns)
        if not before:
            # Each tile of an operand comes from HBM once, for all programs that share it.
            missed = self._cold[0] / columns, self._cold[1] / rows
            return self._program(tile, _most(problem, tile), programs, missed).end_ps
        least = (
            problem.m - (rows - 1) * tile.block_m,
            problem.n - (columns - 1) * tile.columns,
            max(0, problem.k - (tile.split_k - 1) * tile.steps(problem.k) * tile.block_k),
        )
        missed = self._missed(tile)
        program = self._program(tile, least, num_pes, missed)
        ending = self._program(tile, least, active + 1, missed)
        together = min(self._resident(tile), before + 1)
        interval_ps = program.left_ps if together == 1 else program.loop_ps / together
        return before * max(interval_ps, program.busy_ps) + ending.end_ps

    def _missed(self, tile: GemmTile) -> tuple[float, float]:
        """Return the least shares of A and B that HBM moves in each of many waves.

        A tile that no other program reads comes from HBM, and so does one per wave of an operand
        that does not fit in the cache. All that fits may have been cached before.
        """
        problem, sip = self.problem, self.sip
        if sip.cache is None:
            return 1.0, 1.0
        rows, columns = -(-problem.m // tile.block_m), -(-problem.n // tile.columns)
        # A tile in two pieces has two operands in place of B.
        part = min(tile.block_n, tile.block_n2 or tile.block_n)
        b_bytes = problem.n // tile.columns * part * problem.k * problem.dtype.itemsize
        a_stays, b_stays = self._shared.stays(problem.input_bytes), self._shared.stays(b_bytes)
        return (
            0.0 if a_stays and columns > 1 else self._cold[0] / columns,
            0.0 if b_stays and rows > 1 else self._cold[1] / rows,
        )

    def _slowdowns(self, tile: GemmTile) -> tuple[float, float, float]:
        """Return the least slowdowns of HBM for tiles of A, B and C, relative to a stream."""
        problem, short = self.problem, float(self.sip.short_run_slowdown)
        size = problem.dtype.itemsize
        out = _PART_BYTES if tile.split_k > 1 else problem.out.itemsize
        runs = (
            (tile.block_k * size, problem.k > tile.block_k),
            (tile.block_n * size, problem.n > tile.block_n),
            (tile.block_n * out, problem.n > tile.block_n),
        )
        a, b, c = (
            short if apart and run < self.sip.cube.hbm_page_bytes else min(short, 1.0)
            for run, apart in runs
        )
        return a, b, c

    def _program(
        self, tile: GemmTile, sizes: tuple[int, int, int], active: int, missed: tuple[float, float]
    ) -> _LeastProgram:
        """Return the least times of a program with ``sizes`` in C and along K.

        ``missed`` are the shares of its rows of A and columns of B that HBM moves; ``active``
        programs share the resources.
        """
        problem, sip = self.problem, self.sip
        height, width, depth = sizes
        if sip.cache is None:
            missed = 1.0, 1.0
        a_bytes, b_bytes = height * problem.dtype.itemsize, width * problem.dtype.itemsize
        out = _PART_BYTES if tile.split_k > 1 else problem.out.itemsize
        a_slow, b_slow, c_slow = self._slowdowns(tile)
        a_rate = self._load_rate(missed[0], active, a_slow)
        b_rate = self._load_rate(missed[1], active, b_slow)
        apart = a_rate * a_bytes + b_rate * b_bytes
        # Per element of K: the time of the busiest resource for both loads.
        moved_ps = max(
            self._port * (a_bytes + b_bytes),
            self._cache
            * active
            * (
                a_bytes * self._shared.crossings(missed[0])
                + b_bytes * self._shared.crossings(missed[1])
            ),
            self._hbm * active * (a_bytes * missed[0] * a_slow + b_bytes * missed[1] * b_slow),
        )
        steps, whole = tile.steps(problem.k), depth // tile.block_k
        first = min(tile.block_k, depth)
        pieces = [tile.block_n, tile.block_n2] if tile.block_n2 else [tile.block_n]
        # The time of vector math is left out.
        dots = [
            0 if tile.is_vector else dot_ps((1, tile.block_m, n, tile.block_k), self._rate, sip)
            for n in pieces
        ]
        num_loads = 1 + len(pieces)
        loads_ps = steps * num_loads * self._issue_ps + depth * moved_ps
        if whole and depth % tile.block_k:
            # A shorter last step also affects how far the steps overlap.
            moved_ps *= whole / (whole + 1)
        step_ps = tile.block_k * moved_ps + num_loads * self._issue_ps
        wait_ps = self._latency_ps(missed[1])
        ahead = min(width, tile.block_n) / max(width, 1)
        begin_ps = (a_rate * a_bytes + b_rate * b_bytes * ahead) * moved_ps / max(apart, 1e-9)
        begin_ps = 2 * self._issue_ps + first * begin_ps
        loop_ps = max(
            begin_ps + wait_ps + steps * sum(dots),
            loads_ps + wait_ps + dots[-1],
            # An iteration holds its TCM from its first load to its last dot.
            -(-whole // tile.num_stages) * (step_ps + wait_ps + dots[-1]),
        )
        store_rate = max(self._port, self._cache * active)
        stores_ps = [
            self._issue_ps + height * max(0, min(n, width - before)) * out * store_rate
            for n, before in zip(pieces, (0, tile.block_n), strict=False)
        ]
        left_ps = loop_ps + stores_ps[-1]
        if out < _PART_BYTES:
            left_ps += math_ps(MathClass.CONVERT, tile.block_m * tile.block_n, sip)
        moved_a, moved_b, stored = depth * a_bytes, depth * b_bytes, height * width * out
        through = (
            moved_a * self._shared.crossings(missed[0])
            + moved_b * self._shared.crossings(missed[1])
            + stored
        )
        from_hbm = moved_a * missed[0] * a_slow + moved_b * missed[1] * b_slow
        from_hbm += stored * self._cold_results(tile) * c_slow
        share_ps = active * max(self._cache * through, self._hbm * from_hbm)
        return _LeastProgram(
            loop_ps,
            left_ps,
            max(left_ps + self._near_ps, share_ps),
            max(loads_ps, steps * sum(dots), sum(stores_ps), share_ps),
        )

    def _load_rate(self, missed: float, active: int, slowdown: float = 1.0) -> float:
        """Return the least time per byte of a load."""
        hbm = self._hbm * active * missed * slowdown
        return max(self._port, self._cache * active * self._shared.crossings(missed), hbm)

    def _latency_ps(self, missed: float) -> float:
        return self._far_ps if missed else self._near_ps

    def _resident(self, tile: GemmTile) -> int:
        """Return the most programs that a PE runs at the same time."""
        staged = tile.num_stages * (tile.block_m + tile.columns) * tile.block_k
        staged *= self.problem.dtype.itemsize
        return resident_programs(staged + tile.sum_bytes, staged, self.sip)

    def _served_ps(self, tile: GemmTile, programs: int, stored: int) -> float:
        """Return the time of the ports' or the cache's transfers in all waves but a partial one."""
        problem, sip = self.problem, self.sip
        size = problem.dtype.itemsize
        columns, rows = -(-problem.n // tile.columns), -(-problem.m // tile.block_m)
        loaded = (problem.m * columns + problem.n * rows) * problem.k * size
        last = programs % sip.num_pes
        if last and programs > sip.num_pes:
            height, width, depth = _most(problem, tile)
            loaded -= last * (height + width) * depth * size
            stored -= last * height * width * stored // (problem.m * problem.n * tile.split_k)
        elif last:
            return 0.0
        return max(max(loaded, 0) * self._port / sip.num_pes, max(loaded + stored, 0) * self._cache)

    def _hot_ps(self, tile: GemmTile, programs: int, busy_ps: float) -> float:
        """Return the time of a kernel that would take ``busy_ps`` at full clock."""
        if tile.is_vector:
            return busy_ps
        flops = 2 * tile.block_m * tile.columns * tile.block_k * tile.steps(self.problem.k)
        rate = float(self._rate * self.sip.num_pes * self.sip.clock_ghz)
        return busy_ps * stretch(self.sip, "", programs * flops / rate / 1e3, busy_ps / 1e6)

    def _cold_results(self, tile: GemmTile) -> float:
        """Return the share of what a product stores that reaches HBM."""
        return self._cold_parts(tile.split_k) if tile.split_k > 1 else 1.0

    def _cold_parts(self, split_k: int) -> float:
        """Return the share of split-K's parts that the cache does not hold for the sum."""
        size = _PART_BYTES * self.problem.m * self.problem.n * split_k
        return self._shared.missed(1.0, float(self._shared.result_share(size)))

    def _sum_ps(self, split_k: int) -> float:
        """Return the least time of split-K's second kernel, without its front end."""
        sip, size = self.sip, self.problem.m * self.problem.n
        (programs,), constants = sum_parts_launch(size, split_k)
        block = constants["BLOCK"]
        cold = self._cold_parts(split_k)
        before, active = divmod(programs - 1, sip.num_pes)
        last = block if active else size - (programs - 1) * block
        sum_program = self._sum_program(split_k, block, sip.num_pes, cold)
        ending = self._sum_program(split_k, last, active + 1, cold)
        streamed = size * (_PART_BYTES * split_k * cold + self.problem.out.itemsize)
        return max(before * sum_program.busy_ps + ending.end_ps, streamed * self._hbm)

    def _sum_program(self, split_k: int, elements: int, active: int, cold: float) -> _LeastProgram:
        """Return the least times of a program that sums parts of this many elements."""
        part_bytes, out_bytes = elements * _PART_BYTES, elements * self.problem.out.itemsize
        loads_ps = split_k * (self._issue_ps + part_bytes * self._load_rate(cold, active))
        store_ps = self._issue_ps + out_bytes * max(self._port, self._cache * active)
        loop_ps = loads_ps + self._latency_ps(cold)
        left_ps = loop_ps + store_ps
        through = split_k * part_bytes * self._shared.crossings(cold) + out_bytes
        from_hbm = split_k * part_bytes * cold + out_bytes
        share_ps = active * max(self._cache * through, self._hbm * from_hbm)
        return _LeastProgram(
            loop_ps, left_ps, max(left_ps + self._near_ps, share_ps), max(loads_ps, share_ps)
        )


def _most(problem: Problem, tile: GemmTile) -> tuple[int, int, int]:
    """Return the largest height, width and depth of any program."""
    depth = min(tile.block_k * tile.steps(problem.k), problem.k)
    return min(tile.block_m, problem.m), min(tile.columns, problem.n), depth


_MOST_TRACES = 32
"""Enough for all tiles of a problem, which rows of one shape on several devices share."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The fastest tile for a problem."""

    kernel_us: float
    tile: GemmTile


class GemmTuner:
    """Finds the fastest tile by timing the kernel with each candidate."""

    def __init__(self, most_traces: int | None = _MOST_TRACES) -> None:
        self._probe = KernelProbe()
        self._products = lru_cache(maxsize=most_traces)(self._product)
        self._sums = lru_cache(maxsize=most_traces)(self._sum)

    def tune(
        self,
        problem: Problem,
        machine: Machine,
        cached: Cached = (),
    ) -> Timed:
        """Return the tile with the least modeled time."""
        (best,) = self.fastest(problem, machine, cached)
        return best

    def fastest(
        self,
        problem: Problem,
        machine: Machine,
        cached: Cached = (),
        most: int = 1,
        among: Sequence[GemmTile] | None = None,
    ) -> list[Timed]:
        """Return the ``most`` fastest tiles that the library has, the fastest first.

        Tiles that :class:`GemmBounds` excludes are not timed. ``among`` names the candidates
        instead of the library's tiles, and ``cached`` is how much of operands the cache holds.

        Raises:
            MachineError: No tile fits, or the machine gives no rate for the dtype.
        """
        sip = machine.sip
        least = GemmBounds(problem, sip, cached)
        known = tiles(problem, sip) if among is None else among
        bounds = sorted((least.least_ps(tile), index, tile) for index, tile in enumerate(known))
        numbers: list[tuple[int, int, GemmTile]] = []
        # Entered once here, not for every trace.
        with activate(self._probe):
            for bound, index, tile in bounds:
                if len(numbers) == most and bound >= numbers[-1][0]:
                    break
                numbers.append((self.time_ps(problem, tile, machine, cached), index, tile))
                numbers = sorted(numbers, key=lambda triple: triple[:2])[:most]
        if not numbers:
            raise MachineError(
                f"no tile of a GEMM of {problem.dtype} fits in {sip.pe.tcm_kib} KiB of TCM"
            )
        return [Timed(time_ps / 1e6, tile) for time_ps, _, tile in numbers]

    def time_ps(
        self, problem: Problem, tile: GemmTile, machine: Machine, cached: Cached = ()
    ) -> int:
        """Return the time of a product with one tile, including split-K's second kernel.

        ``cached`` is how much of the input (parameter 0) and the weights (1) the cache holds.
        """
        product = self._products(problem, tile)
        if tile.split_k == 1:
            return kernel_duration_ps(product, machine, 0, Conditions(cached=cached))
        summing = self._sums(problem.m * problem.n, problem.out, tile.split_k)
        held = SharedCache(machine.sip).result_share(4 * problem.m * problem.n * tile.split_k)
        out = 3 if tile.is_vector else 2
        first = Conditions(cached=(*cached, (out, held)))
        second = Conditions(cached=((1, held),), queued=True)
        return kernel_duration_ps(product, machine, 0, first) + kernel_duration_ps(
            summing, machine, 0, second
        )

    def _product(self, problem: Problem, tile: GemmTile) -> KernelTrace:
        sizes = (problem.m, problem.n, problem.k)
        operand = ProbePointer(problem.dtype)
        out = ProbePointer(float32 if tile.split_k > 1 else problem.out)
        return self._probe.trace(product_call(operand, operand, out, sizes, problem.dtype, tile))

    def _sum(self, size: int, out: DType, split_k: int) -> KernelTrace:
        return self._probe.trace(
            sum_parts_call(ProbePointer(out), ProbePointer(float32), size, split_k)
        )


def tiles(problem: Problem, sip: SipSpec) -> Iterator[GemmTile]:
    """Yield the tiles of a source's library for the machine, with as many stages as fit."""
    from_shared = takes_shared_operands(sip)
    vector = problem.m == 1 and not from_shared
    for tile in library_tiles(problem.k, problem.dtype, from_shared, vector):
        staged = in_stages(tile, problem.dtype, sip)
        if staged is not None:
            yield staged
