"""What every command of one program costs on a PE, while a given number of programs run.

The rates and latencies all come from the machine file. A DMA command takes as long as the slowest
of the resources that it crosses: the PE's port, its share of the cache, of HBM, and of the links
between cubes. Shared resources are divided evenly among the programs that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from kernbench.commands import (
    Atomic,
    DmaRead,
    DmaWrite,
    Gemm,
    Math,
    MathClass,
    Operand,
    Reduce,
    access_of,
)
from kernbench.dtypes import DType
from kernbench.hardware import PS_PER_NS, SipSpec, ceil_ps, ps_per_byte
from kernbench.kernel_ir import NO_CUDA
from kernbench.kernel_time.conditions import Conditions
from kernbench.kernel_time.costs.block_costs import BlockCosts
from kernbench.kernel_time.costs.bursts import Dims, TouchedBytes, fresh_share
from kernbench.kernel_time.costs.shared_cache import SharedCache
from kernbench.kernel_time.program.pipeline import SiteTimes
from kernbench.kernel_time.program.queues import Cost, Load, Overlapped, Queue, overlapped
from kernbench.kernel_time.program.timed_plan import Chained, CommandSite, ProgramPlan
from kernbench.policy import Placement


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What one program moves at one DMA site."""

    dims: Dims
    """Loops that it varies over, as dims, outermost first."""
    shape: tuple[int, ...]
    """Their trip counts."""
    touched: tuple[TouchedBytes, ...]
    repeats: int
    """How often one program runs each entry of ``touched``."""
    copies: int = 1
    """How many copies of the tensor each byte goes to: a write to a replicated one goes to all."""
    passes: int = 1
    """How often HBM moves each burst: an atomic reads it and writes it back."""

    @property
    def useful_bytes(self) -> int:
        return self.repeats * sum(touched_bytes.useful_bytes for touched_bytes in self.touched)

    @property
    def burst_bytes(self) -> int:
        return self.repeats * sum(touched_bytes.burst_bytes for touched_bytes in self.touched)


@dataclass(frozen=True, slots=True)
class WaveSharing:
    """What a program shares with the other programs of its wave."""

    active: int
    """Programs in the wave."""
    missed: tuple[tuple[int, int], ...]
    """For each DMA site, how much comes from HBM and not from the cache, and of how much."""
    conflicts: tuple[int, ...] = ()
    """For each site, how many of the members change the same elements; empty where none does."""


@dataclass(frozen=True, slots=True, eq=False)
class ProgramCosts:
    """The costs of one program under one :class:`WaveSharing`."""

    times: SiteTimes
    busy_ps: tuple[int, ...]
    """For each site, how long its queue is taken in all."""
    own_ps: tuple[int, ...]
    """For each site, the part that no other PE can shorten or lengthen: its port's and engines'
    time."""
    shares_ps: tuple[int, int, int]
    """What its traffic takes on the program's share of HBM, of the cache, and between cubes."""
    hbm_bytes: Fraction
    """What one program moves in and out of HBM, on average over those that share tiles."""
    hbm_stream_bytes: Fraction
    """How much HBM could stream in the time that it takes for that."""
    hbm_load_bytes: Fraction
    """What of ``hbm_bytes`` loads bring."""
    warps_ps: int = 0
    """How long its PE takes for its products and its vector math among other programs'."""

    @property
    def least_ps(self) -> int:
        """What the program's share of the busiest shared resource needs for all its traffic."""
        return max(self.shares_ps)


@dataclass(frozen=True, slots=True, eq=False)
class DmaCosts:
    """What one program pays at one DMA site, in all its iterations."""

    load: Load
    alone: Overlapped
    """What it takes with no other load in flight."""
    busy_ps: int
    own_ps: int
    """The part of it that is issuing and the PE's port."""
    latency_ps: int
    shares_ps: tuple[int, int, int]
    """The time of it all on the program's share of HBM, of the cache, and between cubes."""
    hbm_bytes: Fraction
    hbm_stream_bytes: Fraction


class CostModel:
    """Costs of one group's commands on one SIP."""

    def __init__(self, plan: ProgramPlan, sip: SipSpec, conditions: Conditions) -> None:
        self.plan = plan
        self.sip = sip
        self.placements = dict(conditions.placements)
        self.spread = Placement.interleaved(sip)
        self._held = dict(conditions.cached)
        loaded = {
            site.command.source.param for site in plan.sites if isinstance(site.command, DmaRead)
        }
        self._overwritten = {
            param: share for param, share in conditions.cached if param not in loaded
        }
        """The share of what is only stored that is stored again before it reaches HBM, by
        parameter."""
        warps, block = sip.pe.warps, conditions.block
        self._block = None if warps is None or block is None else BlockCosts(block, warps, sip)
        # AMD's caches serve half a line at a time.
        self._by_line = block is not None and block.architecture != NO_CUDA
        self._fixed_ps = [self._engine_ps(site) for site in plan.sites]
        self._own_ps = [self._engine_ps(site, site.copied_bytes) for site in plan.sites]
        """For each site, the time of its engine, with what loads write for it meanwhile."""
        self._waits_ps = [self._result_ps(site) for site in plan.sites]
        self._spills_at: int | None = None
        """The site at which registers are spilled; None if none are."""
        if self._block is not None and self._block.spill_ps and self._fixed_ps:
            self._spills_at = self._spilling().index
            for numbers in (self._fixed_ps, self._own_ps):
                numbers[self._spills_at] += self._block.spill_ps
        self._cache = SharedCache(sip) if self._block is None else self._block.cache
        self._one_cube = ps_per_byte(sip.cube_hbm_gbps)
        self._port = ps_per_byte(sip.pe.dma_port_gbps)
        self._issue_ps = sip.cycles_ps(sip.pe.dma_issue_cycles)
        self._likeness = {
            site.index: (type(site.command), access_of(site.command).param, site.is_spread)
            for site in plan.sites
            if isinstance(site.command, DmaRead | DmaWrite | Atomic)
        }
        self._known: dict[tuple[Any, ...], DmaCosts] = {}

    def program(
        self, traffic: Sequence[Traffic | None], counts: Sequence[int], sharing: WaveSharing
    ) -> ProgramCosts:
        """Return the costs of a program with the given traffic (None where no DMA site is).

        ``counts`` says by site how often it runs it.
        """
        occupancy: list[Cost] = []
        varies: list[tuple[int, ...]] = []
        latency: list[int] = []
        busy: list[int] = []
        own: list[int] = []
        shares_ps = [0, 0, 0]
        hbm_bytes = hbm_stream_bytes = hbm_load_bytes = Fraction(0)
        together: dict[int, list[tuple[CommandSite, DmaCosts]]] = {}
        for site, moved in zip(self.plan.sites, traffic, strict=True):
            if moved is None:
                occupancy.append(self._fixed_ps[site.index])
                varies.append(())
                latency.append(self._waits_ps[site.index])
                busy.append(self._own_ps[site.index] * counts[site.index])
                own.append(busy[-1])
                continue
            conflicts = sharing.conflicts[site.index] if sharing.conflicts else 1
            missed = sharing.missed[site.index]
            # What a segment costs at one site, many others do too, and sites that are alike.
            key = (
                *self._likeness[site.index], id(moved.touched), moved.repeats, moved.copies,
                moved.passes, sharing.active, missed, conflicts,
            )  # fmt: skip
            dma = self._known.get(key)
            if dma is None:
                of_hbm = self._missed(site, sharing)
                dma = self._dma(site, moved, sharing.active, of_hbm, conflicts)
                self._known[key] = dma
            occupancy.append(dma.alone.occupancy)
            varies.append(dma.alone.varies)
            latency.append(dma.latency_ps)
            busy.append(dma.busy_ps)
            own.append(dma.own_ps)
            for resource, share in enumerate(dma.shares_ps):
                shares_ps[resource] += share
            if isinstance(site.command, DmaRead):
                hbm_load_bytes += dma.hbm_bytes
            if site.loops and isinstance(site.command, DmaRead):
                together.setdefault(site.loops[-1].loop_id, []).append((site, dma))
            hbm_bytes += dma.hbm_bytes
            hbm_stream_bytes += dma.hbm_stream_bytes
        for loads in together.values():
            if len(loads) < 2:
                continue
            sites, alone = zip(*loads, strict=True)
            taken = overlapped([item.load for item in alone], sites[0].loops, self._issue_ps)
            for site, item in zip(sites, taken, strict=True):
                occupancy[site.index], varies[site.index] = item.occupancy, item.varies
                busy[site.index] = item.busy_ps(counts[site.index], self._issue_ps)
        if self._spills_at is not None:
            *spills_ps, spilled = self._spills(counts[self._spills_at], sharing.active)
            for resource, share in enumerate(spills_ps):
                shares_ps[resource] += share
            hbm_bytes += spilled
            hbm_stream_bytes += spilled
        warps_ps = self._among_warps(occupancy, latency, own, counts)
        times = SiteTimes(tuple(occupancy), tuple(varies), tuple(latency))
        shares = (shares_ps[0], shares_ps[1], shares_ps[2])
        moved_bytes = hbm_bytes, hbm_stream_bytes, hbm_load_bytes
        return ProgramCosts(times, tuple(busy), tuple(own), shares, *moved_bytes, warps_ps)

    def _among_warps(
        self, occupancy: list[Cost], latency: list[int], own: Sequence[int], counts: Sequence[int]
    ) -> int:
        """Shorten what the warps of one program do at the same time; return what others leave."""
        engines = [site for site in self.plan.sites if site.queue in (Queue.GEMM, Queue.MATH)]
        product, math = (
            sum(own[site.index] for site in engines if site.queue is queue)
            for queue in (Queue.GEMM, Queue.MATH)
        )
        if self._block is None or not product or not math:
            return 0
        delay = sum(latency[site.index] * counts[site.index] for site in engines)
        products = [site for site in engines if site.queue is Queue.GEMM]
        loops = [site.loops[-1].loop_id for site in products if site.loops]
        in_step = self._block.lies_across(products[-1].chained)
        again = len(loops) > len(set(loops)) and not in_step
        alone = self._block.alone_ps(product, math, delay, again=again)
        share = alone / (product + math + delay)
        for site in engines:
            for numbers in (occupancy, latency):
                numbers[site.index] = ceil(numbers[site.index] * share)  # type: ignore[operator]
        return ceil(self._block.among_ps(product, math, delay, in_step=in_step))

    def _spills(self, runs: int, active: int) -> tuple[int, int, Fraction]:
        """Return what spilled registers take of its share of HBM, of the cache, and HBM's bytes."""
        assert self._block is not None
        far, of_hbm = self._block.spills_beyond(active)
        cache = self._cache.ps_per_byte(active, Fraction(0), stores=True) * runs
        hbm = self._hbm_ps_per_byte(self.spread, active) * runs
        return _up(hbm, of_hbm), _up(cache, far), of_hbm * runs

    def _spilling(self) -> CommandSite:
        """Return the command at which registers are spilled: the innermost, of products first."""
        computing = [site for site in self.plan.sites if site.queue in (Queue.GEMM, Queue.MATH)]
        return max(
            computing or self.plan.sites,
            key=lambda site: (len(site.loops), site.queue is Queue.GEMM),
        )

    def _result_ps(self, site: CommandSite) -> int:
        """Return how long after a command of an engine its result is there."""
        if self._block is not None and isinstance(site.command, Gemm):
            m, k = site.command.a.shape[-2:]
            itemsize = 2 if self._converts(site.command) else _itemsize_of(site.command)
            held_up = self._block.held_up_ps(site.loops[-1].num_stages) if site.loops else 0
            taken = self._fixed_ps[site.index]
            return held_up + self._block.product_latency_ps(m, k * itemsize, taken)
        if self._block is not None and isinstance(site.command, Reduce):
            return self._block.reduce_latency_ps(site.command, site.chained)
        return 0

    def _missed(self, site: CommandSite, sharing: WaveSharing) -> Fraction:
        """Return the share of a program's bytes at a site that HBM moves."""
        missed = Fraction(*sharing.missed[site.index])
        held = Fraction(0)
        if isinstance(site.command, DmaRead):
            held = self._held.get(site.command.source.param, held)
        elif isinstance(site.command, DmaWrite):
            held = self._overwritten.get(site.command.dest.param, held)
        return self._cache.missed(missed, held) if held else missed

    def _stream_bytes(self, moved: Traffic) -> int | Fraction:
        """Return how much HBM could stream in the time that it takes for a program's bursts."""
        short = sum(
            touched_bytes.burst_bytes
            for touched_bytes in moved.touched
            if self._is_short(touched_bytes)
        )
        longer = moved.burst_bytes - short * moved.repeats
        if not short:
            return longer
        return longer + self.sip.short_run_slowdown * (short * moved.repeats)

    def _dma(
        self, site: CommandSite, moved: Traffic, active: int, missed: Fraction, conflicts: int
    ) -> DmaCosts:
        sip = self.sip
        assert isinstance(site.command, DmaRead | DmaWrite | Atomic)
        place = self.placements.get(access_of(site.command).param, self.spread)
        remote = place.remote_fraction
        if moved.copies > 1:
            remote = Fraction(moved.copies - 1)
        # What HBM moves for each byte of a burst.
        weight = missed * moved.copies * moved.passes
        hbm = self._hbm_ps_per_byte(place, active) * weight
        stores = isinstance(site.command, DmaWrite)
        waits = self._cache.waits_for_hbm(stores)
        cache = self._cache.ps_per_byte(active, missed, stores)
        fresh = self._fresh(site, moved, waits)
        between = Fraction(0)
        if sip.die_to_die is not None:
            between = ps_per_byte(sip.die_to_die.bandwidth_gbps) * remote
            between *= Fraction(active, sip.num_cubes)
        # Programs that change the same elements take turns at the HBM that holds them.
        turns = self._one_cube * (moved.passes * (conflicts - 1)) if conflicts > 1 else Fraction(0)
        waited = hbm if waits else Fraction(0)
        layout = self._block.layout_ps if self._block is not None and site.is_spread else 0
        if fresh != 1:
            weight, hbm, cache, waited = (item * fresh for item in (weight, hbm, cache, waited))
        rates = [waited, waited * self.sip.short_run_slowdown, cache, between]
        if turns:
            rates = [rate + turns for rate in rates]
        streaming, short, cached, crossed = rates
        needs = {
            touched_bytes: (
                _up(
                    self._port,
                    max(touched_bytes.useful_bytes, self._by_line * touched_bytes.line_bytes),
                    turns and turns * size,
                ),
                _up(short if self._is_short(touched_bytes) else streaming, size),
                _up(cached, size),
                _up(crossed, size),
            )
            for touched_bytes in set(moved.touched)
            for size in (touched_bytes.burst_bytes,)
        }
        load = Load.of(
            moved.dims, moved.shape, [needs[touched_bytes] for touched_bytes in moved.touched]
        )
        (alone,) = overlapped([load], site.loops, self._issue_ps)
        total, streamed = moved.burst_bytes, self._stream_bytes(moved)
        on_port = sum(needs[touched_bytes][0] for touched_bytes in moved.touched)
        return DmaCosts(
            load=load,
            alone=alone,
            busy_ps=alone.busy_ps(moved.repeats * len(moved.touched), self._issue_ps),
            own_ps=moved.repeats * (len(moved.touched) * self._issue_ps + on_port),
            latency_ps=self._latency_ps(missed, remote, waits, fresh) + layout,
            shares_ps=(_up(hbm, streamed), _up(cache, total), _up(between, total)),
            hbm_bytes=weight * total,
            hbm_stream_bytes=weight * streamed,
        )

    def _is_short(self, touched: TouchedBytes) -> bool:
        """Return whether its runs of bytes open a DRAM page each, so that they do not stream."""
        return 0 < touched.run_bytes < self.sip.cube.hbm_page_bytes

    def _hbm_ps_per_byte(self, place: Placement, active: int) -> Fraction:
        """Return one program's share of the HBM that holds a tensor, as time per byte."""
        if place.copies > 1:
            # Each program reads its own cube's copy.
            return self._one_cube * -(-active // place.num_cubes)
        return self._one_cube * Fraction(active, place.num_cubes)

    def _fresh(self, site: CommandSite, moved: Traffic, reads: bool) -> Fraction:
        """Return the share of a load's bursts that the PE's own cache does not have."""
        if self._block is None or not reads or not isinstance(site.command, DmaRead):
            return Fraction(1)
        largest = max(moved.touched, key=lambda touched_bytes: touched_bytes.burst_bytes)
        if not self._block.keeps(largest.burst_bytes):
            return Fraction(1)
        runs = moved.repeats * len(moved.touched)
        return fresh_share(site, largest, self.sip.cube.hbm_burst_bytes, runs)

    def _latency_ps(self, missed: Fraction, remote: Fraction, waits: bool, fresh: Fraction) -> int:
        sip = self.sip
        if self._block is not None:
            return self._block.load_latency_ps(bool(missed and waits), fresh)
        nanoseconds = self._cache.latency_ns(missed, waits)
        if sip.die_to_die is not None and remote:
            nanoseconds += sip.die_to_die.latency_ns
        return ceil_ps(nanoseconds * PS_PER_NS)

    def _engine_ps(self, site: CommandSite, copied_bytes: int = 0) -> int:
        """Return the cost of one GEMM or math command, 0 for a DMA command."""
        command = site.command
        if isinstance(command, Gemm):
            return self._gemm_ps(command, copied_bytes, site.chained)
        if self._block is not None and site.is_fused:
            return 0
        slowdown = Fraction(1)
        if self._block is not None and isinstance(command, Math | Reduce):
            shape = (command.dst if isinstance(command, Math) else command.inputs[0]).shape
            slowdown = self._block.slowdown * self._block.repeats(shape, site.chained)
        if isinstance(command, Math):
            words = 1 if self._block is None else _words(command.dst, *command.inputs)
            elements = words * num_elements(command.dst.shape)
            return ceil_ps(math_ps(command.cost, elements, self.sip) * slowdown)
        if isinstance(command, Reduce):
            words = 1 if self._block is None else _words(*command.inputs)
            elements = words * sum(num_elements(tile.shape) for tile in command.inputs)
            taken = ceil_ps(math_ps(MathClass.REDUCE, elements, self.sip) * slowdown)
            if self._block is None:
                return taken
            rate = self.sip.pe.math.elements_per_clock.exchange
            return taken + words * self._block.exchange_ps(command, rate, site.chained)
        return 0

    def _gemm_ps(self, command: Gemm, copied_bytes: int, chained: Chained | None) -> int:
        *batch, m, k = command.a.shape
        sizes = (num_elements(tuple(batch)), m, command.b.shape[-1], k)
        rate = gemm_flops_per_clock(command, self.sip)
        if self._block is not None:
            converted = self._converts(command)
            if converted:
                rate = Fraction(self.sip.gemm_flops_per_clock("float16"))
            itemsize = _itemsize_of(command)
            return self._block.product_ps(sizes, itemsize, rate, converted, copied_bytes, chained)
        return dot_ps(sizes, rate, self.sip)

    def _converts(self, command: Gemm) -> bool:
        dtype: DType | None = getattr(command.a, "dtype", None)
        if self._block is None or dtype is None or not dtype.name.startswith("float8"):
            return False
        return self._block.converts(command.a.shape[-2])


def dot_ps(sizes: tuple[int, int, int, int], flops_per_clock: Fraction, sip: SipSpec) -> int:
    """Return the time of products of ``sizes`` (how many, M, N, K) on one GEMM engine.

    Whole native tiles at the given rate, and filling and draining once.
    """
    engine = sip.pe.gemm
    count, m, n, k = sizes
    tiles = count * -(-m // engine.native_m) * -(-n // engine.native_n) * -(-k // engine.native_k)
    flops = 2 * tiles * engine.native_m * engine.native_n * engine.native_k
    cycles = ceil_ps(flops / (flops_per_clock * engine.efficiency))
    return sip.cycles_ps(cycles + engine.fill_drain_cycles)


def math_ps(cost: MathClass, elements: int, sip: SipSpec) -> int:
    """Return the time of a command of ``elements`` elements on one math engine."""
    engine = sip.pe.math
    rate: int = getattr(engine.elements_per_clock, cost.value)
    return sip.cycles_ps(engine.startup_cycles + -(-elements // rate))


def gemm_flops_per_clock(command: Gemm, sip: SipSpec) -> Fraction:
    """Return the rate of a dot on one PE: that of its slower operand, over its passes.

    Raises:
        MachineError: The machine gives no rate for an operand's dtype.
    """
    return min(_rates(command, sip))[0]


def gemm_rate(command: Gemm, sip: SipSpec) -> str:
    """Return the name of the rate that a dot runs at, as the machine has it.

    Raises:
        MachineError: The machine gives no rate for an operand's dtype.
    """
    return min(_rates(command, sip))[1]


def _rates(command: Gemm, sip: SipSpec) -> Iterator[tuple[Fraction, str]]:
    for operand in (command.a, command.b):
        name, passes = _rate(operand, command.precision, sip)
        yield Fraction(sip.gemm_flops_per_clock(name), passes), name


def _rate(operand: Operand, precision: str, sip: SipSpec) -> tuple[str, int]:
    """Return the name of the rate that a GEMM operand runs at, and how many passes it takes."""
    dtype: DType | None = getattr(operand, "dtype", None)
    name = "int8" if dtype is None else dtype.name
    if name == "float32":
        return sip.float32_passes(precision)
    return ("int8" if name in ("uint8", "bool") else name), 1


def _itemsize_of(command: Gemm) -> int:
    dtypes = (getattr(operand, "dtype", None) for operand in (command.a, command.b))
    return max(1 if dtype is None else dtype.itemsize for dtype in dtypes)


def _words(*operands: Operand) -> int:
    """Return in how many registers of 32 bits the widest element lies: each takes instructions."""
    dtypes = (getattr(operand, "dtype", None) for operand in operands)
    return max((-(-dtype.itemsize // 4) for dtype in dtypes if dtype is not None), default=1)


def _up(ps_per_byte: Fraction, size: int | Fraction, more_ps: int | Fraction = 0) -> int:
    """Return the time of ``size`` bytes plus ``more_ps``, rounded up."""
    if isinstance(size, int) and not more_ps:
        return -(-ps_per_byte.numerator * size // ps_per_byte.denominator)
    return ceil_ps(ps_per_byte * size + more_ps)


def num_elements(shape: tuple[int, ...]) -> int:
    """Return how many elements a tile of a shape has."""
    return int(np.prod(shape, dtype=np.int64))
