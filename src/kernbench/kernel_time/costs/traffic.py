"""What the programs of a group move: which move alike, what is cached, which conflict.

Programs of a group that move the same amounts, and go around its loops equally often, are one
*class*. Programs of one path that run in one wave are a *cell*: they share tiles. A class in a
cell is a *segment*, and segments that have all in common but their programs are of one *kind*.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Atomic,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Loop,
    ProgramGroup,
    Tile,
    access_of,
    distinct,
    distinct_values,
    first_body,
    is_loop,
    loop_dim,
    path_numbers,
    walk,
)
from kernbench.dtypes import Array
from kernbench.kernel_time.costs.bursts import Moved, touched
from kernbench.kernel_time.costs.chosen_rows import chosen_rows
from kernbench.kernel_time.costs.command_costs import Traffic, WaveSharing
from kernbench.kernel_time.costs.common_bursts import common_shares
from kernbench.kernel_time.costs.fingerprints import (
    parts_of,
    pattern_fingerprints,
    program_fingerprints,
)
from kernbench.kernel_time.costs.idle_programs import working_ids
from kernbench.kernel_time.costs.joint_reads import ReadTogether
from kernbench.kernel_time.costs.listed_addresses import listed
from kernbench.kernel_time.costs.lookup_tables import Lookups, capped
from kernbench.kernel_time.costs.shared_cache import stay_for_launch
from kernbench.kernel_time.program.origins import is_loaded
from kernbench.kernel_time.program.timed_plan import CommandSite, ProgramPlan, build_program_plan

Dims = tuple[int, ...]

_MIX = -7046029254386353131
_MOST_LISTED = 256
"""Kinds of programs at a site whose addresses are listed one by one; the others are as the last."""
NO_TABLES: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class ProgramClass:
    """Programs that move the same amounts and have the same trip counts."""

    trips: Mapping[int, int]
    """Trip counts of the loops that programs of the group go around differently often."""
    counts: tuple[int, ...]
    """For each site, how often one program runs it."""
    traffic: tuple[Traffic | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramKind:
    """What the programs of some segments have in common."""

    program_class: ProgramClass
    sharing: WaveSharing


@dataclass(frozen=True, slots=True, eq=False)
class _SharedTiles:
    """What programs of one path read or write together at one site."""

    site: int
    bytes_moved: int
    """The bytes of all distinct tiles."""
    positions: Array
    """The positions of the programs."""
    tiles: Array
    """The number of each program's tile."""


def varies_by_program(group: ProgramGroup) -> bool:
    """Return whether an access varies over programs and a loop of ``trips`` at the same time."""
    loops = {loop_dim(loop_id) for loop_id, _ in group.trips}
    return any(PROGRAM in dims and not loops.isdisjoint(dims) for dims in _terms_of(group))


def _varies_in_loops(group: ProgramGroup) -> bool:
    """Return whether what a program does in its loops, or how often, depends on which it is."""
    if group.trips:
        return True
    return any(PROGRAM in dims and any(map(is_loop, dims)) for dims in _terms_of(group))


def _terms_of(group: ProgramGroup) -> Iterator[Dims]:
    """Yield what the terms of addresses and masks vary over."""
    for command in walk(group.body):
        if isinstance(command, DmaRead | DmaWrite | Atomic):
            for tensor in (access_of(command).offset, command.mask):
                if not isinstance(tensor, Tile):
                    yield from tensor.terms


def _dma_sites(plan: ProgramPlan) -> list[CommandSite]:
    return [site for site in plan.sites if isinstance(site.command, DmaRead | DmaWrite | Atomic)]


@dataclass(frozen=True, slots=True, eq=False)
class GroupTraffic:
    """The segments of a program group, and what a program of each kind of them moves.

    Has no array of a number for each program but one, as it is kept for as long as a launch's
    schedules.
    """

    plan: ProgramPlan
    """The plan of the first program, where no address varies over programs and loops at the same
    time."""
    kinds: list[ProgramKind]
    kind_of: Array
    """The kind of each segment."""
    wave: Array
    """The wave of each segment."""
    sizes: Array
    """How many programs each segment has."""
    first_program: Array
    """The lowest program of each segment."""
    programs: slice | Array
    """The ids of all programs, rising."""
    segment_of: Array
    """The segment of each of them."""
    sites_by_data: list[CommandSite]
    """The sites that address rows by loaded indices, but for tables that stay in the cache."""

    def num_programs(self) -> list[int]:
        """Return how many programs are of each kind."""
        counts: Array = np.bincount(self.kind_of, self.sizes, len(self.kinds))
        numbers: list[int] = counts.astype(np.int64).tolist()
        return numbers

    def dma_sites(self) -> list[CommandSite]:
        """Return the sites that move bytes."""
        return _dma_sites(self.plan)


class GroupSplit:
    """The classes, cells and segments of a program group on ``num_pes`` PEs.

    Where each PE holds several blocks, what all of them read together is read once.
    """

    def __init__(
        self,
        trace: KernelTrace,
        group: ProgramGroup,
        num_pes: int,
        burst_bytes: int,
        room: int | None,
        copies: Mapping[int, int],
        together: ReadTogether | None = None,
        tables: Mapping[int, int] = NO_TABLES,
        blocks_per_pe: int | None = None,
        *,
        gathers_stores: bool = False,
        streams_miss: bool = False,
    ) -> None:
        self._group, self._num_slots = group, trace.num_slots
        self.plan = build_program_plan(group.body, trace.num_slots)
        self._lookups = Lookups.of(self.plan.sites, tables)
        self._burst_bytes = burst_bytes
        self._gathers_stores = gathers_stores
        self._copies = copies
        # Blocks find in the cache what there is room for, of an operand that is too large too.
        self._keeps_parts = blocks_per_pe is not None
        self._ids = group.program_ids
        self._path_trips, self._path_of = path_numbers(group)
        self._dma = _dma_sites(self.plan)
        # Cells in order of their path, then of their wave.
        width = num_pes * (blocks_per_pe or 1)
        working = working_ids(trace)
        where, count = self._ids, trace.num_programs
        if working is not None:
            where, count = np.searchsorted(working, self._ids), len(working)
        wave_of = where // width
        num_waves = int(wave_of.max()) + 1
        cells, _, self._cell_of = distinct(self._path_of * num_waves + wave_of)
        waves = cells % num_waves
        self._members = np.bincount(self._cell_of)
        active = np.clip(count - waves * width, 1, num_pes)
        self.class_of, self.classes = self._classes()
        self._looked_up: Mapping[int, Fraction] = {}
        if room is not None and self._lookups.sizes:
            part = Fraction(len(self._ids), trace.num_programs)
            self._looked_up, room = self._lookups.shares(self._moved(), part, room)
        missed, read = self._missed(room, together), self._members[:, None]
        common: Mapping[int, Fraction] = {}
        if room is not None:
            sizes = (len(self._ids), width, burst_bytes, room)
            common = common_shares(
                self._dma, *sizes, alike=not group.trips, streams_miss=streams_miss
            )
        if together is not None or self._looked_up or common:
            missed, read = self._with_shares(missed, together, common)
        columns = (*read.T, *missed.T, *self._conflicts().T)
        self._of_cells = waves, active, columns
        self._num_reads = read.shape[1]

    def traffic(self) -> GroupTraffic:
        """Return the segments, without what they were found by."""
        waves, active, columns = self._of_cells
        array, first, segment_of = distinct(self._cell_of * len(self.classes) + self.class_of)
        cell_at, class_at = np.divmod(array, len(self.classes))
        columns = (class_at, active[cell_at], *(column[cell_at] for column in columns))
        _, leaders, kind_of = distinct(reduce(_joined, columns))
        kinds = [
            ProgramKind(
                self.classes[which], _sharing(active, rest, len(self.plan.sites), self._num_reads)
            )
            for which, active, *rest in zip(
                *(column[leaders].tolist() for column in columns), strict=True
            )
        ]
        plan = self.plan
        if not _varies_in_loops(self._group):
            plan = build_program_plan(first_body(self._group), self._num_slots)
        low, high = int(self._ids[0]), int(self._ids[-1])
        is_range = high - low + 1 == len(self._ids)
        by_data = {site.index for site in self._sites_by_data()}
        return GroupTraffic(
            plan=plan,
            kinds=kinds,
            kind_of=kind_of,
            wave=waves[cell_at],
            sizes=np.bincount(segment_of),
            first_program=self._ids[first],
            programs=slice(low, high + 1) if is_range else self._ids,
            segment_of=segment_of.astype(np.int32),
            sites_by_data=[site for site in plan.sites if site.index in by_data],
        )

    def _sites_by_data(self) -> list[CommandSite]:
        return [
            site
            for site in self._dma
            if site.gather is not None
            and site.index not in self._looked_up
            and is_loaded(site.gather)
        ]

    # -- classes ------------------------------------------------------------------------------

    def _classes(self) -> tuple[Array, list[ProgramClass]]:
        """Split the programs by trip counts and by what they move."""
        count = len(self._ids)
        patterns = [pattern_fingerprints(site, count) for site in self._dma]
        marks = self._path_of
        for pattern in patterns:
            marks = marks * _MIX + pattern
        _, first, class_of = distinct(marks)
        known: dict[Any, Moved] = {}
        by_site: dict[Any, list[Moved]] = {}
        repeated: dict[Any, Traffic] = {}
        program_classes = []
        for position in first.tolist():
            path = int(self._path_of[position])
            trips = {loop: int(path_trip[path]) for loop, path_trip in self._path_trips.items()}
            counts = tuple(_count(site, trips) for site in self.plan.sites)
            traffic: list[Traffic | None] = [None] * len(counts)
            for site, pattern in zip(self._dma, patterns, strict=True):
                # Classes that differ in other ways than this share what is found.
                of_site = (site.index, *self._trips_of(site, trips))
                key = (int(pattern[position]), *of_site)
                moved = known.get(key)
                if moved is None and (site.gather is not None or site.mask is not None):
                    before = by_site.setdefault(of_site, [])
                    if len(before) < _MOST_LISTED:
                        alike = np.flatnonzero(class_of == class_of[position]).tolist()
                        before.append(self._listed(site, alike, trips))
                    moved = known[key] = before[-1]
                elif moved is None:
                    moved = known[key] = touched(site, position, self._burst_bytes, trips)
                as_often = (key, counts[site.index])
                if as_often not in repeated:
                    repeated[as_often] = self._traffic(site, moved, counts[site.index], trips)
                traffic[site.index] = repeated[as_often]
            program_classes.append(ProgramClass(trips, counts, tuple(traffic)))
        return class_of, program_classes

    def _listed(
        self, site: CommandSite, positions: Sequence[int], trips: Mapping[int, int]
    ) -> Moved:
        """Return what programs that are alike move at a site whose addresses are data."""
        dims, moved = listed(site, positions, self._burst_bytes, trips)
        if site.index in self._lookups.sizes:
            moved = capped(moved, self._lookups.sizes[site.index], self._burst_bytes)
        return dims, moved

    @staticmethod
    def _trips_of(site: CommandSite, trips: Mapping[int, int]) -> tuple[int, ...]:
        """Return the trip counts that decide what a site moves in each iteration."""
        if not trips:
            return ()
        dims = {dim for part in parts_of(site) for term in part.terms for dim in term}
        return tuple(count for loop, count in trips.items() if loop_dim(loop) in dims)

    def _traffic(
        self, site: CommandSite, moved: Moved, count: int, trips: Mapping[int, int]
    ) -> Traffic:
        dims, item = moved
        lengths = {loop_dim(loop.loop_id): _trips(loop, trips) for loop in site.loops}
        shape = tuple(lengths[dim] for dim in dims)
        repeats = count // max(int(np.prod(shape, dtype=np.int64)), 1)
        copies, is_load = 1, True
        if isinstance(site.command, DmaWrite | Atomic):
            copies = self._copies.get(access_of(site.command).param, 1)
        if isinstance(site.command, Atomic):
            is_load = site.command.kind == "load"
        return Traffic(dims, shape, item, repeats, copies, 1 if is_load else 2)

    # -- cells --------------------------------------------------------------------------------

    def _missed(self, room: int | None, together: ReadTogether | None) -> Array:
        """Return, by cell and site, how many of the programs' tiles come from HBM."""
        missed = np.repeat(self._members[:, None], len(self.plan.sites), axis=1)
        if room is None:
            return missed
        known: Container[object] = ()
        if together is not None:
            room, known = together.room, together.shares
        for reads in self._shared_tiles(known).values():
            stay, left = stay_for_launch(room, [read.bytes_moved for read in reads])
            part = left // max(stay.count(False), 1) if self._keeps_parts else 0
            for shared_tiles, stays in zip(reads, stay, strict=True):
                cells = self._cell_of[shared_tiles.positions]
                mine = distinct_values(cells)
                _, first, _ = distinct(shared_tiles.tiles)
                num_tiles = int(shared_tiles.tiles.max()) + 1
                in_wave = distinct_values(cells * num_tiles + shared_tiles.tiles) // num_tiles
                once, again = (
                    np.bincount(array, minlength=len(self._members))[mine]
                    for array in (cells[first], in_wave)
                )
                kept = shared_tiles.bytes_moved if stays else part
                dropped = (again - once) * (shared_tiles.bytes_moved - kept)
                missed[mine, shared_tiles.site] = once - -dropped // max(
                    shared_tiles.bytes_moved, 1
                )
        return missed

    def _moved(self) -> dict[int, int]:
        """Return what all programs move at the sites of table lookups."""
        sizes = dict.fromkeys(self._lookups.sizes, 0)
        for number, program_class in zip(
            np.bincount(self.class_of).tolist(), self.classes, strict=True
        ):
            for site in sizes:
                traffic = program_class.traffic[site]
                assert traffic is not None
                sizes[site] += number * traffic.burst_bytes
        return sizes

    def _with_shares(
        self, missed: Array, together: ReadTogether | None, common: Mapping[int, Fraction]
    ) -> tuple[Array, Array]:
        """Return the share that comes from HBM by cell and site: numerators and denominators."""
        read = np.repeat(self._members[:, None], missed.shape[1], axis=1)
        shares = {} if together is None else together.shares
        for site in self._dma:
            share = shares.get(site.command)  # type: ignore[arg-type]
            of_table = self._looked_up.get(site.index, Fraction(1))
            # Programs that share rows may need less than the table.
            if share is None and of_table * int(self._members.sum()) < missed[:, site.index].sum():
                share = _in_few_digits(of_table)
            if share is not None:
                missed[:, site.index], read[:, site.index] = share
            elif site.index in common:
                once, apart = _in_few_digits(common[site.index])
                missed[:, site.index] *= once
                read[:, site.index] *= apart
        divisor = np.gcd(missed, read)
        return missed // divisor, read // divisor

    def _shared_tiles(self, known: Container[object]) -> dict[int, list[_SharedTiles]]:
        """Return by path what its programs move together at sites that are not ``known``.

        Programs that use parts of the same bursts move them together. A store that leaves a part
        of a burst to others waits for them in a cache that is written back.
        """
        by_path = np.argsort(self._path_of, kind="stable")
        sizes = np.bincount(self._path_of)
        ends = np.cumsum(sizes)
        per_class = np.bincount(self.class_of)
        path_of_class = np.zeros(len(self.classes), dtype=np.int64)
        path_of_class[self.class_of] = self._path_of
        shared_tiles: dict[int, list[_SharedTiles]] = {}
        for site in self._dma:
            if isinstance(site.command, Atomic) or site.command in known:
                continue
            # Whether a program has no use for all that the bursts of its tile hold.
            of_classes = (program_class.traffic[site.index] for program_class in self.classes)
            in_part = any(
                item is not None and item.burst_bytes > item.useful_bytes for item in of_classes
            )
            if isinstance(site.command, DmaWrite) and not (in_part and self._gathers_stores):
                continue
            unit = self._burst_bytes if in_part else 1
            tiles, num_tiles = self._tiles(site, self._path_of, unit)
            moved = [0] * len(sizes)
            for path, number, program_class in zip(
                path_of_class.tolist(), per_class.tolist(), self.classes, strict=True
            ):
                traffic = program_class.traffic[site.index]
                assert traffic is not None
                moved[path] += number * traffic.burst_bytes
            # Where each tile is another one, nothing is shared.
            for path in np.flatnonzero(num_tiles < sizes).tolist():
                positions = by_path[ends[path] - sizes[path] : ends[path]]
                bytes_moved = moved[path] * int(num_tiles[path]) // int(sizes[path])
                own = distinct(tiles[positions])[2]
                read = _SharedTiles(site.index, bytes_moved, positions, own)
                shared_tiles.setdefault(path, []).append(read)
        return shared_tiles

    def _conflicts(self) -> Array:
        """Return, by cell and site, how many programs change the same elements by an atomic.

        Addresses that depend on data are taken as distinct. Has no columns without atomics.
        """
        atomics = [site for site in self.plan.sites if isinstance(site.command, Atomic)]
        width = len(self.plan.sites) if atomics else 0
        conflicts = np.ones((len(self._members), width), dtype=np.int64)
        for site in atomics:
            if site.gather is None or not is_loaded(site.gather):
                _, targets = self._tiles(site, self._cell_of)
                conflicts[:, site.index] = -(-self._members // targets)
        return conflicts

    def _tiles(self, site: CommandSite, parts: Array, unit: int = 1) -> tuple[Array, Array]:
        """Return the tile of each program, and how many different ones each part has.

        Tiles are taken as the same whose elements begin in the same bursts of ``unit`` bytes.
        """
        count, size = len(self._ids), self._lookups.sizes.get(site.index)
        chosen = {} if size is None else chosen_rows(site, count, size)
        marks = program_fingerprints(site, count, unit, chosen)
        tiles = distinct(marks)[2]
        number = int(tiles.max()) + 1
        return tiles, np.bincount(distinct_values(parts * number + tiles) // number)


_MOST_PARTS = 1 << 20


def _in_few_digits(share: Fraction) -> tuple[int, int]:
    """Return a share as two numbers of a few digits, rounded up."""
    if share.denominator <= _MOST_PARTS:
        return share.numerator, share.denominator
    return -(-share.numerator * _MOST_PARTS // share.denominator), _MOST_PARTS


def _joined(a: Array, b: Array) -> Array:
    """Return numbers that are equal where both are equal, and less than the length squared."""
    if (b == b[:1]).all():
        return a
    values, _, which = distinct(b)
    return distinct(a * len(values) + which)[2]


def _sharing(active: int, columns: list[int], num_sites: int, num_reads: int) -> WaveSharing:
    """Return what a kind shares, from its columns: read (by site, or once), missed, conflicts."""
    read, missed = columns[:num_reads], columns[num_reads : num_reads + num_sites]
    pairs = zip(missed, read if len(read) == num_sites else read * num_sites, strict=True)
    return WaveSharing(active, tuple(pairs), tuple(columns[num_reads + num_sites :]))


def _trips(loop: Loop, trips: Mapping[int, int]) -> int:
    return trips.get(loop.loop_id, loop.trip_count)


def _count(site: CommandSite, trips: Mapping[int, int]) -> int:
    """Return how often a program of these trip counts runs a site."""
    total = 1
    for loop in site.loops:
        total *= _trips(loop, trips)
    return total
