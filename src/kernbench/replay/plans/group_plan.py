"""One program group as steps: all work that does not depend on data, done once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Assert,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    IndexTile,
    KernelTrace,
    Loop,
    MaskTile,
    Math,
    Operand,
    Param,
    Predicate,
    Print,
    ProgramGroup,
    Reduce,
    Separable,
    Splat,
    Tile,
    axis_dim,
    is_loop,
    walk,
)
from kernbench.dtypes import Array, DType
from kernbench.replay.numerics.elementwise import SHAPE_OPS, build_function, build_into
from kernbench.replay.numerics.gemm import build_gemm, build_gemm_into
from kernbench.replay.numerics.reductions import build_reduction
from kernbench.replay.plans.composite import SharedProduct, shared_products
from kernbench.replay.steps.access import Store, StoreLoaded, StoreResult, TileLoad
from kernbench.replay.steps.atomics import AtomicStep
from kernbench.replay.steps.diagnostics import AssertStep, PrintStep
from kernbench.replay.steps.frame import Frame, PointerArg
from kernbench.replay.steps.lifetimes import Hazards, freed_after, reads, results
from kernbench.replay.steps.ranges import RANGED, RangeStep
from kernbench.replay.steps.sites import AccessSite, Chunks, atomic_name
from kernbench.replay.steps.step import Freeing, Materialise, Step, calling, looping

_CHUNK_ELEMENTS = 1 << 16
_LOOP_CHUNK_ELEMENTS = 1 << 18
_FREED_BYTES = 1 << 14
"""Values of fewer bytes than this are not freed, but overwritten."""


class Watch(Protocol):
    """Observes a running plan by its own steps around those of every command.

    A plan without one (the usual case) has no overhead. With one, every command is a separate step,
    and every slot may have a *shadow*: a slot for what is known about its value, which loops carry
    along with it.
    """

    def begin(self, group: GroupPlan) -> list[Step]:
        """Return the steps at the start of every chunk."""

    def before(self, group: GroupPlan, command: Command) -> list[Step]:
        """Return the steps that run before those of a command."""

    def after(self, group: GroupPlan, command: Command) -> list[Step]:
        """Return the steps that run after those of a command."""


class GroupPlan:
    """The steps of one program group, and the chunks that its programs are cut into.

    If ``kept`` slots are read afterwards, there is one chunk of all programs. Without ``merges``
    no loop is computed for several programs at once.
    """

    def __init__(
        self,
        group: ProgramGroup,
        trace: KernelTrace,
        watch: Watch | None,
        kept: frozenset[int] | None = None,
        *,
        merges: bool = True,
    ) -> None:
        self._shared = (
            _shared_loops(group, trace) if merges and watch is None else dict[Loop, Step]()
        )
        whole = (0, len(group.program_ids))
        self.chunks = (
            _cut(group, trace.grid)
            if kept is None and not self._shared
            else Chunks(whole, group.program_ids, trace.grid)
        )
        self._kernel, self._num_warps = trace.name, trace.num_warps
        self._hazards = Hazards(group.body)
        self._values: list[Any] = [None] * trace.num_slots
        self._params: list[tuple[int, Param]] = []
        self._slots: dict[Any, int] = {}
        self._sizes: dict[int, int] = {}
        self._shadows: dict[int, int] = {}
        self._watch = watch
        self._num_loops = 1 + max(
            (c.loop_id for c in walk(group.body) if isinstance(c, Loop)), default=-1
        )
        begin = [] if watch is None else watch.begin(self)
        self.steps = [*begin, *self._build_body(group.body, kept or frozenset())]

    def run(
        self,
        frame: Frame,
        params: Sequence[PointerArg | float | int | None],
        arrays: Mapping[int, Array] | None = None,
    ) -> None:
        """Run all chunks. ``given`` are values of slots that the group reads from outside."""
        values = self._values.copy()
        for slot, array in (arrays or {}).items():
            values[slot] = array
        for slot, param in self._params:
            value = np.empty((1,) * (1 + len(param.shape)), param.dtype.numpy)
            value[...] = params[param.index]
            values[slot] = value
        frame.values = values
        frame.iterations = [0] * self._num_loops
        bounds = self.chunks.bounds
        steps = self.steps
        for chunk in range(len(bounds) - 1):
            frame.chunk = chunk
            frame.num_programs = bounds[chunk + 1] - bounds[chunk]
            for step in steps:
                step(frame)

    @property
    def is_simple(self) -> bool:
        """Whether its steps run once, on nothing but memory: no loops, chunks, scalars or watch."""
        return len(self.chunks) == 1 and not (self._num_loops or self._params or self._watch)

    def stores(self) -> Iterator[Store]:
        """Yield the stores outside of loops."""
        for step in self.steps:
            if isinstance(step, StoreResult | StoreLoaded):
                yield step.store
            elif isinstance(step, Store):
                yield step

    def _build_body(self, body: tuple[Command, ...], kept: frozenset[int]) -> list[Step]:
        steps: list[Step] = []
        watch = self._watch
        fused = _fusible(body, kept) if watch is None else frozenset[int]()
        for index, (command, freed) in enumerate(zip(body, freed_after(body, kept), strict=True)):
            if index in fused:
                after = body[index + 1]
                assert isinstance(command, Math | Gemm | DmaRead)
                assert isinstance(after, DmaWrite)
                steps += self._build_fused(command, after)
            elif watch is not None:
                before, after_it = watch.before(self, command), watch.after(self, command)
                steps += [*before, *self._build(command), *after_it]
            elif index - 1 not in fused:
                steps += self._build(command)
            sizes = {tile.slot: tile.size_bytes for tile in results(command)}
            self._sizes.update(sizes)
            large = tuple(
                slot for slot in freed if self._sizes[slot] * self._longest >= _FREED_BYTES
            )
            if large:
                steps.append(Freeing(large))
        return steps

    @property
    def _longest(self) -> int:
        return max(b - a for a, b in pairwise(self.chunks.bounds))

    def _build(self, command: Command) -> list[Step]:
        if isinstance(command, DmaRead):
            return self._build_load(command)
        if isinstance(command, DmaWrite):
            before, slot = self._fetch(command.value)
            site = AccessSite(command.dest, command.mask, command.line, self.chunks, is_store=True)
            return [*before, Store(site, slot)]
        if isinstance(command, Atomic):
            return self._build_atomic(command)
        if isinstance(command, Math):
            return self._build_math(command)
        if isinstance(command, Gemm):
            return self._build_gemm(command)
        if isinstance(command, Reduce):
            return self._build_reduce(command)
        if isinstance(command, Print):
            return self._build_print(command)
        if isinstance(command, Assert):
            before, slot = self._fetch(command.condition)
            return [*before, AssertStep(command, slot, self.chunks, self._kernel)]
        return self._build_loop(command)

    def _build_print(self, command: Print) -> list[Step]:
        steps: list[Step] = []
        slots: list[int] = []
        for value in command.values:
            if isinstance(value, Access):
                slots.append(-1)
                continue
            before, slot = self._fetch(value)
            steps += before
            slots.append(slot)
        return [*steps, PrintStep(command, tuple(slots), self.chunks)]

    def _build_load(self, command: DmaRead) -> list[Step]:
        site = AccessSite(command.source, command.mask, command.line, self.chunks, is_store=False)
        hazards = self._hazards.of(command)
        other = command.other
        if other is None or isinstance(other, Splat):
            fill = _scalar(0 if other is None else other.value, command.dst.dtype)
            return [TileLoad(site, command.dst.slot, None, fill, hazards)]
        before, slot = self._fetch(other)
        fill = _scalar(0, command.dst.dtype)
        return [*before, TileLoad(site, command.dst.slot, slot, fill, hazards)]

    def _build_atomic(self, command: Atomic) -> list[Step]:
        before, value = self._fetch(command.value)
        compare: int | None = None
        if command.compare is not None:
            steps, compare = self._fetch(command.compare)
            before = [*before, *steps]
        site = AccessSite(
            command.access,
            command.mask,
            command.line,
            self.chunks,
            is_store=True,
            atomic=atomic_name(command),
        )
        dst = None if command.dst is None else command.dst.slot
        return [*before, AtomicStep(site, command.kind, value, compare, dst)]

    def _build_fused(self, command: Math | Gemm | DmaRead, after: DmaWrite) -> list[Step]:
        site = AccessSite(after.dest, after.mask, after.line, self.chunks, is_store=True)
        store = Store(site, command.dst.slot)
        if isinstance(command, DmaRead):
            *steps, load = self._build_load(command)
            assert isinstance(load, TileLoad)
            return [*steps, StoreLoaded(store, load)]
        if isinstance(command, Math):
            steps, slots = self._math_inputs(command)
            function, into = build_function(command), build_into(command)
        else:
            steps, slots = self._gemm_inputs(command)
            function = build_gemm(command)
            into = build_gemm_into(command) if len(slots) == 2 else None
        if into is None:
            return [*steps, calling(function, slots, command.dst.slot), store]
        return [*steps, StoreResult(store, function, into, slots)]

    def _build_math(self, command: Math) -> list[Step]:
        steps, slots = self._math_inputs(command)
        return [*steps, calling(build_function(command), slots, command.dst.slot)]

    def _math_inputs(self, command: Math) -> tuple[list[Step], tuple[int, ...]]:
        steps: list[Step] = []
        slots: list[int] = []
        rank = len(command.dst.shape)
        elementwise = command.op not in SHAPE_OPS
        for operand in command.inputs:
            before, slot = self._fetch(operand)
            steps += before
            if elementwise and len(operand.shape) == 0 < rank:
                slot, before_step = self._spread(slot, rank)
                steps.append(before_step)
            slots.append(slot)
        if command.op in RANGED:
            steps.append(RangeStep(command, tuple(slots), self.chunks, self._kernel))
        return steps, tuple(slots)

    def _spread(self, slot: int, rank: int) -> tuple[int, Step]:
        """Return a slot that holds a scalar's value with ``rank`` axes of length 1."""
        target = self._new_slot(None)
        ones = (1,) * rank

        def step(frame: Frame) -> None:
            value = frame.values[slot]
            frame.values[target] = value.reshape(len(value), *ones)

        return target, step

    def _build_gemm(self, command: Gemm) -> list[Step]:
        steps, slots = self._gemm_inputs(command)
        return [*steps, calling(build_gemm(command), slots, command.dst.slot)]

    def _gemm_inputs(self, command: Gemm) -> tuple[list[Step], tuple[int, ...]]:
        before_a, a = self._fetch(command.a)
        before_b, b = self._fetch(command.b)
        acc, before_acc = None, list[Step]()
        zero = isinstance(command.acc, Splat) and command.acc.value == 0
        if command.acc is not None and not zero:
            before_acc, acc = self._fetch(command.acc)
        slots = (a, b) if acc is None else (a, b, acc)
        return [*before_a, *before_b, *before_acc], slots

    def _build_reduce(self, command: Reduce) -> list[Step]:
        steps: list[Step] = []
        slots: list[int] = []
        for operand in command.inputs:
            before, slot = self._fetch(operand)
            steps += before
            slots.append(slot)
        reduction = build_reduction(command, self._num_warps)
        targets = [tile.slot for tile in command.dsts]

        def step(frame: Frame) -> None:
            values = frame.values
            for target, value in zip(targets, reduction([values[s] for s in slots]), strict=True):
                values[target] = value

        return [*steps, step]

    def _build_loop(self, command: Loop) -> list[Step]:
        if command in self._shared:
            return [self._shared[command]]
        entry: list[Step] = []
        moves: list[tuple[int, int, int, int]] = []
        tail: list[Step] = []
        kept: set[int] = set()
        for carried in command.carried:
            self._sizes[carried.arg.slot] = carried.arg.size_bytes
            before, init = self._fetch(carried.init)
            entry += before
            before, yielded = self._fetch(carried.yielded)
            tail += before
            kept.add(yielded)
            move = (init, carried.arg.slot, yielded, carried.result.slot)
            moves.append(move)
            if self._watch is not None:
                shadow_init, arg, shadow_yielded, result = map(self.shadow, move)
                moves.append((shadow_init, arg, shadow_yielded, result))
        body = [*self._build_body(command.body, frozenset(kept)), *tail]
        return [*entry, looping(command.loop_id, command.trip_count, body, moves)]

    def _fetch(self, operand: Operand) -> tuple[list[Step], int]:
        """Return the slot that holds an operand, and the steps that fill it first."""
        if isinstance(operand, Tile):
            return [], operand.slot
        if isinstance(operand, Splat):
            key: Any = ("splat", repr(operand.value), len(operand.shape), operand.dtype.name)
            if key not in self._slots:
                value = np.empty((1,) * (1 + len(operand.shape)), operand.dtype.numpy)
                value[...] = _scalar(operand.value, operand.dtype)
                self._slots[key] = self._new_slot(value)
            return [], self._slots[key]
        if isinstance(operand, Param):
            key = ("param", operand.index, len(operand.shape), operand.dtype.name)
            if key not in self._slots:
                self._slots[key] = self._new_slot(None)
                self._params.append((self._slots[key], operand))
            return [], self._slots[key]
        return self._fetch_known(operand)

    def _fetch_known(self, operand: IndexTile | MaskTile) -> tuple[list[Step], int]:
        tensor: Separable | Predicate = operand.values
        dtype = operand.dtype.numpy if isinstance(operand, IndexTile) else np.dtype(np.bool_)
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(operand.shape))))
        if not any(dim == PROGRAM or is_loop(dim) for dim in tensor.dims):
            key = id(operand)
            if key not in self._slots:
                self._slots[key] = self._new_slot(tensor.dense(dims).astype(dtype))
            return [], self._slots[key]
        slot = self._new_slot(None)
        return [Materialise(operand.values, dims, dtype, slot, self.chunks)], slot

    def fetch(self, operand: Operand) -> tuple[list[Step], int]:
        """Return the slot that holds an operand, and the steps that fill it first."""
        return self._fetch(operand)

    def shadow(self, slot: int) -> int:
        """Return the slot for what a watch knows about the value of ``slot``."""
        if slot not in self._shadows:
            self._shadows[slot] = self._new_slot(None)
        return self._shadows[slot]

    def _new_slot(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1


def _shared_loops(group: ProgramGroup, trace: KernelTrace) -> dict[Loop, Step]:
    """Return the steps of loops that are computed as products of all programs together."""
    steps: dict[Loop, Step] = {}
    for command in group.body:
        if isinstance(command, Loop) and any(isinstance(read, Gemm) for read in command.body):
            products = shared_products(group, command)
            if products is not None:
                steps[command] = _sharing(products, len(group.program_ids), trace)
    return steps


def _sharing(products: list[SharedProduct], num_programs: int, trace: KernelTrace) -> Step:
    """Return the step that computes products and passes each program its blocks."""
    tiles = products[0].tiles
    kept = frozenset(tile.slot for tile in tiles)
    plans = [GroupPlan(product.group, trace, None, kept) for product in products]

    def step(frame: Frame) -> None:
        outer = frame.values, frame.iterations, frame.chunk, frame.num_programs
        blocks = [np.empty((num_programs, *t.shape), t.dtype.numpy) for t in tiles]
        for product, plan in zip(products, plans, strict=True):
            plan.run(frame, ())
            position = product.classes.position
            rows, columns = position.shape
            for tile, block in zip(tiles, blocks, strict=True):
                m, n = tile.shape
                whole = np.broadcast_to(frame.values[tile.slot][0], (rows * m, columns * n))
                block[position] = whole.reshape(rows, m, columns, n).swapaxes(1, 2)
        frame.values, frame.iterations, frame.chunk, frame.num_programs = outer
        for tile, block in zip(tiles, blocks, strict=True):
            frame.values[tile.slot] = block

    return step


def _fusible(body: tuple[Command, ...], kept: frozenset[int]) -> frozenset[int]:
    """Return the positions of commands whose only reader is the store that follows them."""
    num_reads = Counter(slot for command in body for slot in reads(command))
    return frozenset(
        index
        for index, (command, after) in enumerate(pairwise(body))
        if isinstance(command, Math | Gemm | DmaRead)
        and isinstance(after, DmaWrite)
        and isinstance(after.value, Tile)
        and after.value.slot == command.dst.slot
        and after.dest.dtype == command.dst.dtype
        and num_reads[command.dst.slot] == 1
        and command.dst.slot not in kept
    )


def _scalar(value: int | float | bool, dtype: DType) -> Any:
    """Return the constant in its type; integers wrap around in two's complement."""
    numpy = dtype.numpy
    if numpy.kind in "iu":
        bits = 8 * numpy.itemsize
        return np.array(int(value) & ((1 << bits) - 1), dtype=f"u{numpy.itemsize}").view(numpy)[()]
    with np.errstate(all="ignore"):
        return np.array(value).astype(numpy)[()]


def _cut(group: ProgramGroup, grid: tuple[int, int, int]) -> Chunks:
    """Cut a group's programs so that the temporaries of one chunk stay in cache."""
    programs = len(group.program_ids)
    commands = list(walk(group.body))
    largest = max(
        (
            int(np.prod(tile.shape, dtype=np.int64))
            for command in commands
            for tile in results(command)
        ),
        default=1,
    )
    has_loop = any(isinstance(command, Loop) for command in commands)
    budget = _LOOP_CHUNK_ELEMENTS if has_loop else _CHUNK_ELEMENTS
    length = max(budget // max(largest, 1), 1)
    if length > grid[0]:
        length -= length % grid[0]
    if programs <= 2 * length:
        length = max(programs, 1)
    return Chunks((*range(0, programs, length), programs), group.program_ids, grid)
