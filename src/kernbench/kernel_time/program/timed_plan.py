"""One program's commands in the form that timing needs: sites, queues, and what waits for what.

A *site* is one command of the kernel's text; it may run many times (programs x iterations). Views
(trans, reshape, broadcast) cost nothing and disappear: who reads a view reads what it views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kernbench.commands import (
    Assert,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    IndexTile,
    Loop,
    MaskTile,
    Math,
    MathClass,
    Operand,
    Predicate,
    Print,
    Reduce,
    Splat,
    Tile,
    is_axis,
)
from kernbench.kernel_time.program.addressing import Addressing
from kernbench.kernel_time.program.fusion import fused
from kernbench.kernel_time.program.origins import Part, TileOrigins, uses_tiles
from kernbench.kernel_time.program.queues import Queue, QueueStep, Slots, queue_of

ONE_PATH: Mapping[int, int] = MappingProxyType({})
"""No loop that programs go around differently often."""

_LEAST_COPY_BYTES = 4
"""What an asynchronous copy to shared memory takes at least. Source: PTX's ``cp.async``."""
SiteCommand = DmaRead | DmaWrite | Atomic | Gemm | Math | Reduce


@dataclass(frozen=True, slots=True)
class Chained:
    """Of products that are made of each other, as attention's are: where in them a command is."""

    rows: int
    columns: int
    """Those of the last product's result."""
    is_last: bool
    """Whether it is the last product; else an earlier one, or computed on such a one's result."""


@dataclass(frozen=True, slots=True, eq=False)
class CommandSite:
    """One command of the text, and the loops around it, outermost first."""

    index: int
    queue: Queue
    kind: str
    command: SiteCommand
    loops: tuple[Loop, ...]
    gather: Part | None = None
    """What the part of its addresses that is data was made of."""
    mask: Part | None = None
    """What its mask was made of, where that is data."""
    is_fused: bool = False
    """Whether it is part of another command's instructions on a GPU."""
    copied_bytes: int = 0
    """The bytes that cross shared memory for a product before its factors are read from there."""
    chained: Chained | None = None
    is_spread: bool = False
    """Whether it loads a vector that becomes a tile's row or column."""

    @property
    def count(self) -> int:
        """How often one program runs it."""
        total = 1
        for loop in self.loops:
            total *= loop.trip_count
        return total


@dataclass(frozen=True, slots=True, eq=False)
class LoopNode:
    """A rolled loop of steps."""

    loop_id: int
    trip_count: int
    in_flight: int
    """How many iterations have TCM slots at the same time."""
    body: tuple[Node, ...]
    sites: range
    inits: tuple[Slots, ...] = ()
    args: Slots = ()
    yields: tuple[Slots, ...] = ()
    results: Slots = ()
    invariants: Slots = ()
    """Slots that the body reads and that are written before the loop."""
    late: frozenset[int] = frozenset()
    """Sites of loads that a compiler for GPUs does not issue ahead: they feed no product."""


Node = QueueStep | LoopNode


@dataclass(frozen=True, slots=True, eq=False)
class ProgramPlan:
    """All commands of one program of a group."""

    nodes: tuple[Node, ...]
    sites: tuple[CommandSite, ...]
    num_slots: int


def build_program_plan(body: tuple[Command, ...], num_slots: int) -> ProgramPlan:
    """Return the plan of one program whose commands are ``body``."""
    builder = _Builder(fused=fused(body))
    if uses_tiles(body):
        builder.origins, builder.addressing = TileOrigins(), Addressing(body)
    return ProgramPlan(builder.nodes(body, ()), tuple(builder.sites), num_slots)


@dataclass(slots=True)
class _Builder:
    fused: set[int]
    sites: list[CommandSite] = field(default_factory=list)
    roots: dict[int, Slots] = field(default_factory=dict)
    """Slots that a view stands for."""
    origins: TileOrigins | None = None
    """Where an access uses tiles: how they came to be."""
    addressing: Addressing | None = None
    multiplied: dict[int, set[int]] = field(default_factory=dict)
    """The slots of the factors of each site that is a product."""
    vectors: dict[int, set[int]] = field(default_factory=dict)
    """For each slot of a vector, the sites of the loads that it is computed of."""

    def nodes(self, body: tuple[Command, ...], loops: tuple[Loop, ...]) -> tuple[Node, ...]:
        queue_steps: list[Node] = []
        for command in body:
            if isinstance(command, Loop):
                queue_steps.append(self._loop(command, loops))
            elif isinstance(command, Math) and self._is_free(command):
                self.roots[command.dst.slot] = self._slots(command.inputs)
                if command.op == "tt.expand_dims":
                    # The loads of vectors become rows or columns of a tile.
                    slots = self.roots[command.dst.slot]
                    for load in {load for slot in slots for load in self.vectors.get(slot, ())}:
                        self.sites[load] = replace(self.sites[load], is_spread=True)
                if self.origins is not None:
                    self.origins.note(command)
            elif not isinstance(command, Print | Assert):
                queue_steps.append(self._step(command, loops))
        return tuple(queue_steps)

    def _is_free(self, command: Math) -> bool:
        if command.cost is MathClass.FREE:
            return True
        return self.addressing is not None and self.addressing.holds(command)

    def _origin(self, operand: Tile | Predicate | None) -> Part | None:
        is_tile = isinstance(operand, Tile) and self.origins is not None
        return self.origins.of(operand) if is_tile else None  # type: ignore[union-attr, arg-type]

    def _slots(self, operands: Iterable[Operand | Predicate | None]) -> Slots:
        slots: dict[int, None] = {}
        for operand in operands:
            if isinstance(operand, Tile):
                slots.update(dict.fromkeys(self.roots.get(operand.slot, (operand.slot,))))
        return tuple(slots)

    def _step(self, command: SiteCommand, loops: tuple[Loop, ...]) -> QueueStep:
        gather: Tile | None = None
        writes: Slots
        if isinstance(command, DmaRead):
            kind, gather = "dma_read", command.source.gather
            reads = self._slots((command.other, command.mask, gather))
            writes = (command.dst.slot,)
        elif isinstance(command, DmaWrite):
            kind, gather = "dma_write", command.dest.gather
            reads, writes = self._slots((command.value, command.mask, gather)), ()
        elif isinstance(command, Atomic):
            kind, gather = "atomic", command.access.gather
            reads = self._slots((command.value, command.compare, command.mask, gather))
            writes = () if command.dst is None else (command.dst.slot,)
        elif isinstance(command, Gemm):
            kind = "gemm"
            reads = self._slots((command.a, command.b, command.acc))
            self.multiplied[len(self.sites)] = set(self._slots((command.a, command.b)))
            writes = (command.dst.slot,)
        elif isinstance(command, Reduce):
            kind = "reduce"
            reads = self._slots(command.inputs)
            writes = tuple(dst.slot for dst in command.dsts)
        else:
            kind = "math"
            reads, writes = self._slots(command.inputs), (command.dst.slot,)
        index, queue = len(self.sites), queue_of(command)
        address = self._origin(gather)
        mask = self._origin(getattr(command, "mask", None))
        is_fused = isinstance(command, Math) and id(command.dst) in self.fused
        site = CommandSite(index, queue, kind, command, loops, address, mask, is_fused)
        self.sites.append(site)
        loads = {index} if isinstance(command, DmaRead) else set()
        if isinstance(command, Math):
            loads = {load for slot in reads for load in self.vectors.get(slot, ())}
        shape = () if isinstance(command, DmaWrite | Reduce | Atomic) else command.dst.shape
        self.vectors |= dict.fromkeys(writes, loads if len(shape) == 1 else set())
        # A tile's slot may be that of an earlier one.
        for slot in writes:
            self.roots.pop(slot, None)
        if self.origins is not None:
            self.origins.note(command)
        return QueueStep(index, queue, reads, writes)

    def _loop(self, loop: Loop, loops: tuple[Loop, ...]) -> LoopNode:
        first = len(self.sites)
        inits = tuple(self._slots((carried.init,)) for carried in loop.carried)
        if self.origins is not None:
            self.origins.enter(loop)
        body = self.nodes(loop.body, (*loops, loop))
        args = tuple(carried.arg.slot for carried in loop.carried)
        if self.origins is not None:
            self.origins.leave(loop)
        self._note_copies(body, ahead=loop.num_stages > 1)
        self._note_chains(body)
        innermost = not any(isinstance(dma_read, Loop) for dma_read in loop.body)
        return LoopNode(
            loop_id=loop.loop_id,
            trip_count=loop.trip_count,
            # Only innermost loops are pipelined, as Triton does it.
            in_flight=max(1, loop.num_stages) if innermost else 1,
            body=body,
            sites=range(first, len(self.sites)),
            inits=inits,
            args=args,
            yields=tuple(self._slots((carried.yielded,)) for carried in loop.carried),
            results=tuple(carried.result.slot for carried in loop.carried),
            invariants=tuple(sorted(_reads(body) - _writes(body) - set(args))),
            late=self._late(body) if innermost and loop.num_stages > 1 else frozenset(),
        )

    def _note_copies(self, body: tuple[Node, ...], *, ahead: bool) -> None:
        """Say of a loop's products how many bytes cross shared memory before factors are read.

        Loads write what they bring. What is computed of loads and constants alone the product's
        threads compute; else those that loaded do: they read what was copied ahead, and write it.
        Source: ``hoistConvertDotOperand`` of Triton's ``RemoveLayoutConversions.cpp``.
        """
        loaded: dict[int, dict[int, int]] = {}
        """For each slot, the bytes of each load that its tile is made of."""
        rewritten: dict[int, int] = {}
        products: set[int] = set()
        """The slots of products' results, and of what is computed on them."""
        for step in (node for node in body if isinstance(node, QueueStep)):
            site, command = self.sites[step.site], self.sites[step.site].command
            reads = self.multiplied.get(step.site, set(step.reads))
            loads = {at: size for slot in reads for at, size in loaded.get(slot, {}).items()}
            crossing = 0
            if isinstance(command, Gemm):
                copied = sum(loads.values()) + sum(rewritten.get(slot, 0) for slot in reads)
                self.sites[step.site] = replace(site, copied_bytes=copied)
            elif isinstance(command, DmaRead):
                loads = {step.site: command.dst.size_bytes}
            elif loads and isinstance(command, Math):
                here = all(loaded.get(slot, True) and not rewritten.get(slot) for slot in reads)
                if not (here and all(map(self._is_anywhere, command.inputs))):
                    crossing = command.dst.size_bytes + (sum(loads.values()) if ahead else 0)
            if isinstance(command, Gemm) or not products.isdisjoint(reads):
                products.update(step.writes)
                loads, crossing = {}, 0
            loaded |= dict.fromkeys(step.writes, loads)
            rewritten |= dict.fromkeys(step.writes, crossing)

    def _is_anywhere(self, operand: Operand) -> bool:
        """Return whether threads need not hand over an operand: a tile or a constant."""
        if isinstance(operand, IndexTile | MaskTile):
            return operand.values.is_uniform
        return isinstance(operand, Splat) or bool(self._slots((operand,)))

    def _note_chains(self, body: tuple[Node, ...]) -> None:
        """Say of a loop's products, and of what is computed on their results, that one is a factor.

        A product whose result becomes a factor of the next one, and everything of its shape between
        the two.
        """
        makers: dict[int, tuple[int, ...]] = {}
        """For each slot, the sites that its tile was computed by, the product first."""
        for step in (node for node in body if isinstance(node, QueueStep)):
            site = self.sites[step.site]
            of_product: tuple[int, ...] = ()
            if isinstance(site.command, Gemm):
                before = {at for slot in self.multiplied[step.site] for at in makers.get(slot, ())}
                if before:
                    shape = self._shape(min(before))
                    rows, columns = site.command.dst.shape[-2:]
                    for at in (at for at in before if self._shape(at) == shape):
                        chained = Chained(rows, columns, is_last=False)
                        self.sites[at] = replace(self.sites[at], chained=chained)
                    last = Chained(rows, columns, is_last=True)
                    self.sites[step.site] = replace(site, chained=last)
                of_product = (step.site,)
            elif isinstance(site.command, Math | Reduce):
                before = {at for slot in step.reads for at in makers.get(slot, ())}
                of_product = (*before, step.site) if before else ()
            makers |= dict.fromkeys(step.writes, of_product)

    def _shape(self, site: int) -> tuple[int, ...]:
        """Return the shape of the tile that a site computes on."""
        command = self.sites[site].command
        if isinstance(command, Reduce):
            return command.inputs[0].shape
        return command.dst.shape if isinstance(command, Gemm | Math) else ()

    def _late(self, body: tuple[Node, ...]) -> frozenset[int]:
        """Return the loads of a body that do not run ahead of it, where it has products.

        They feed none, or have less than four bytes in a row, which no asynchronous copy takes.
        Source: ``LowerLoops.cpp`` of Triton.
        """
        steps = [queue_step for queue_step in body if isinstance(queue_step, QueueStep)]
        if not any(step.queue is Queue.GEMM for step in steps):
            return frozenset()
        feeding: set[int] = set()
        late = []
        for step in reversed(steps):
            if step.queue is Queue.GEMM:
                feeding |= self.multiplied[step.site]
            elif not feeding.isdisjoint(step.writes):
                feeding |= set(step.reads)
                if step.queue is Queue.DMA_IN and _is_scattered(self.sites[step.site].command):
                    late.append(step.site)
            elif step.queue is Queue.DMA_IN:
                late.append(step.site)
        return frozenset(late)


def with_one_engine(plan: ProgramPlan) -> ProgramPlan:
    """Return a plan whose vector math waits for products, and products for it."""

    def merged(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, body=merged(node.body))
            if isinstance(node, LoopNode)
            else replace(node, queue=Queue.GEMM if node.queue is Queue.MATH else node.queue)
            for node in nodes
        )

    return replace(plan, nodes=merged(plan.nodes))


def with_late_loads(plan: ProgramPlan) -> ProgramPlan:
    """Return a plan whose late loads wait for the iteration before theirs.

    Warps issue them in order, as they do stores, while copies to shared memory run ahead.
    """

    def waiting(nodes: tuple[Node, ...], late: frozenset[int], args: Slots) -> tuple[Node, ...]:
        queue_steps: list[Node] = []
        for node in nodes:
            if isinstance(node, LoopNode):
                queue_steps.append(replace(node, body=waiting(node.body, node.late, node.args)))
            elif node.site in late:
                queue_steps.append(replace(node, queue=Queue.DMA_OUT, reads=(*node.reads, *args)))
            else:
                queue_steps.append(node)
        return tuple(queue_steps)

    return replace(plan, nodes=waiting(plan.nodes, frozenset(), ()))


def _is_scattered(command: SiteCommand) -> bool:
    """Return whether no two elements of a load are neighbours, which are narrower than 4 bytes.

    False where they are read by numbers that are not known, whose rows may lie anywhere.
    """
    assert isinstance(command, DmaRead)
    itemsize = command.source.dtype.itemsize
    if itemsize >= _LEAST_COPY_BYTES:
        return False
    steps = Counter[int]()
    for dims, array in command.source.offset.terms.items():
        if is_axis(dims[-1]):
            along = array[(0,) * (array.ndim - 1)]
            steps[dims[-1]] += int(along[1] - along[0])
    return bool(steps) and itemsize not in steps.values()


def _reads(body: tuple[Node, ...]) -> set[int]:
    reads: set[int] = set()
    for node in body:
        if isinstance(node, QueueStep):
            reads.update(node.reads)
        else:
            reads.update(*node.inits, *node.yields, _reads(node.body))
    return reads


def _writes(body: tuple[Node, ...]) -> set[int]:
    writes: set[int] = set()
    for node in body:
        if isinstance(node, QueueStep):
            writes.update(node.writes)
        else:
            writes.update(node.args, node.results, _writes(node.body))
    return writes
