"""Which accumulators, and which loops' loads, a program holds at the same time.

An accumulator is one piece of memory from the product that begins it to the last use of what it
becomes in place: the next product that adds to it, a scaling of it, the value that a loop carries
on. Two that are never live together can lie in the same place.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kernbench.kernel_ir.text.ir import Function, Op, Region, Value

_LOADS = ("tt.load", "tt.descriptor_load", "tt.experimental_descriptor_load")
DOTS = ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot")
LOOPS = ("scf.for", "scf.while")


def accumulator_of(dot: Op) -> Value:
    """Return what a product is added to."""
    return dot.operands[2 if dot.name == "ttng.warp_group_dot" else -1]


def num_stages_of(loop: Op, launch_num_stages: int) -> int:
    """Return how many iterations of a loop are in flight at once (1: one after another).

    The loop's own ``num_stages`` (``tl.range(..., num_stages=n)``) wins over the launch's, which
    counts only for loops that feed a ``tt.dot``. A loop around another loop is not pipelined.
    """
    if not pipelined_loads(loop):
        return 1
    own = loop.attrs.get("tt.num_stages")
    return max(int(own if isinstance(own, int) else launch_num_stages), 1)


# A memo, not state: operations do not change.
@functools.lru_cache(maxsize=1024)
def pipelined_loads(loop: Op) -> tuple[Op, ...]:
    """Return the loads of a loop that are issued ahead.

    Those that feed a ``tt.dot`` through any chain of operations, or all loads where the loop asks
    for stages itself.
    """
    body = loop.regions[0].entry.ops
    if any(op.name in LOOPS for op in loop.regions[0].walk()):
        return ()
    loads = tuple(op for op in body if op.name in _LOADS)
    if "tt.num_stages" in loop.attrs:
        return loads
    feeding: set[Value] = set()
    for op in reversed(body):
        if op.name in DOTS:
            # The accumulator is not streamed in.
            feeding |= set(op.operands[:2])
        elif any(result in feeding for result in op.results):
            feeding |= set(op.operands)
    return tuple(op for op in loads if any(result in feeding for result in op.results))


def buffered_stages(loop: Op, num_stages: int) -> int:
    """Return for how many of its stages a loop's loads have buffers.

    All, unless addresses are loaded in the loop, too: those loads run ahead of the others, and of
    the stages each gets a share.
    Source: what Triton 3.9 takes of shared memory for 8.0, with 3 to 6 stages.
    """
    ahead = set(pipelined_loads(loop))
    depths: dict[Value, int] = {}
    deepest = 1
    for op in loop.regions[0].entry.ops:
        depth = max((depths.get(operand, 0) for operand in op.operands), default=0)
        if op in ahead:
            depth += 1
            deepest = max(deepest, depth)
        depths.update(dict.fromkeys(op.results, depth))
    return max(num_stages - 1, 0) // deepest + 1


_TERMINATORS = ("scf.yield", "scf.condition")
_REPEATING = ("tt.splat", "tt.broadcast")
_IN_PLACE = (
    "arith.", "math.", "tt.fp_to_fp", "tt.precise_", "tt.approx_", "ttng.warp_group_dot_wait",
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveSpan:
    """The operations of a function, by number, during which something is live."""

    first: int
    last: int


class LiveTiles:
    """Where the accumulators of a function are live; it has no branches but structured ones."""

    def __init__(self, function: Function) -> None:
        self._spans: dict[Op, LiveSpan] = {}
        self._loops: dict[Op, tuple[Op, ...]] = {}
        """The loops around each operation, from the outside in."""
        self._parents: dict[Value, Value] = {}
        self._repeats: set[Value] = set()
        self._constants: set[Value] = set()
        self._count(function.body, ())
        self._uses = Counter(value for op in self._spans for value in op.operands)
        # What is inside comes first: a loop asks what its values lie with.
        for op in reversed(self._spans):
            self._join(op)

    def accumulators(self) -> list[tuple[Op, LiveSpan]]:
        """Return the first product of each accumulator, and where the accumulator is live."""
        members: dict[Value, list[Op]] = {}
        for op in self._spans:
            if op.name in DOTS:
                members.setdefault(self._root(op.results[0]), []).append(op)
        spans = self._live(set(members))
        return [(ops[0], spans[root]) for root, ops in members.items()]

    def places(self, values: Iterable[Value]) -> list[tuple[Value, int, LiveSpan]]:
        """Return the largest value of each place that some of ``values`` share.

        With its size in bytes, and where the place is live.
        """
        largest: dict[Value, tuple[int, Value]] = {}
        for value in values:
            dtype, root = value.type.dtype, self._root(value)
            size = 0 if dtype is None else math.prod(value.type.shape) * dtype.itemsize
            largest[root] = max(largest.get(root, (-1, value)), (size, value), key=lambda x: x[0])
        spans = self._live(set(largest))
        return [(value, size, spans[root]) for root, (size, value) in largest.items()]

    def share(self, value: Value, other: Value) -> bool:
        """Return whether two values have one place."""
        return self._root(value) is self._root(other)

    def span(self, op: Op) -> LiveSpan:
        """Return an operation and everything nested in it."""
        return self._spans[op]

    def seen(self, value: Value, views: Sequence[str]) -> LiveSpan:
        """Return where a value is live, or what operations named in ``views`` show of it."""
        values = [value]
        for op in self._spans:
            if op.name in views and op.operands[0] in values:
                values.append(op.results[0])
        spans = [span for _, _, span in self.places(values)]
        return LiveSpan(min(span.first for span in spans), max(span.last for span in spans))

    def _count(self, region: Region, loops: tuple[Op, ...]) -> None:
        for op in (op for block in region.blocks for op in block.ops):
            first = len(self._spans)
            self._spans[op] = LiveSpan(first, first)
            self._loops[op] = loops
            if op.name in _REPEATING:
                self._repeats.update(op.results)
            if op.name == "arith.constant":
                self._constants.update(op.results)
            for inner in op.regions:
                self._count(inner, (*loops, op) if op.name in LOOPS else loops)
            self._spans[op] = LiveSpan(first, len(self._spans) - 1)

    def _root(self, value: Value) -> Value:
        while (parent := self._parents.get(value, value)) is not value:
            value = parent
        return value

    def _same(self, value: Value, becomes: Value) -> None:
        """Record that two values share one place in memory."""
        self._parents[self._root(becomes)] = self._root(value)

    def _join(self, op: Op) -> None:
        if op.name in DOTS:
            # Nothing else may want what it was; a constant has no place before it is needed.
            accumulator = accumulator_of(op)
            if self._uses[accumulator] == 1 and accumulator not in self._constants:
                self._same(accumulator, op.results[0])
        elif op.name in LOOPS:
            self._join_loop(op)
        elif op.name == "scf.if":
            for region in op.regions:
                self._carry(_yielded(region), op.results)
        elif op.name.startswith(_IN_PLACE) and len(op.results) == 1:
            result = op.results[0]
            alike = (value for value in op.operands if value.type.text == result.type.text)
            # What only repeats a smaller value has no place of its own.
            ending = (value for value in alike if value not in self._repeats)
            free = next((value for value in ending if self._uses[value] == 1), None)
            if free is not None:
                self._same(free, result)

    def _join_loop(self, op: Op) -> None:
        inside = op.regions[-1].entry.args
        if op.name == "scf.for":
            args, inside, inits = inside[1:], inside[1:], op.operands[3:]
        else:
            args, inits = op.regions[0].entry.args, op.operands
            self._carry(_yielded(op.regions[0])[1:], inside)
        # A value that several want at the start is copied.
        for init, arg in zip(inits, args, strict=True):
            if self._uses[init] == 1:
                self._carry([init], [arg])
        # What comes back in another's place is a swap: each stays where it is.
        places = {self._root(arg): arg for arg in inside}
        for value, arg in zip(_yielded(op.regions[-1]), args, strict=True):
            own = places.get(self._root(arg))
            if places.get(self._root(value), own) is own:
                self._carry([value], [arg])
        self._carry(inside, op.results)

    def _carry(self, values: Sequence[Value], becomes: Sequence[Value]) -> None:
        for value, target in zip(values, becomes, strict=False):
            if value.type.shape:
                self._same(value, target)

    def _live(self, roots: set[Value]) -> dict[Value, LiveSpan]:
        """Return the live range of each place that these values share."""
        spans: dict[Value, LiveSpan] = {}
        made_in: dict[Value, tuple[Op, ...]] = {}

        def extend(value: Value, at: LiveSpan) -> None:
            root = self._root(value)
            if root in roots:
                known = spans.get(root, at)
                spans[root] = LiveSpan(min(known.first, at.first), max(known.last, at.last))

        for op, span in self._spans.items():
            for region in op.regions:
                for arg in (arg for block in region.blocks for arg in block.args):
                    made_in[arg] = (*self._loops[op], op) if op.name in LOOPS else self._loops[op]
                    extend(arg, span)
            for result in op.results:
                made_in[result] = self._loops[op]
                if op.name != "arith.constant":
                    extend(result, LiveSpan(span.last, span.last))
        for op, span in self._spans.items():
            for value in op.operands:
                # What a loop finds, it finds again in its next iteration.
                around = self._loops[op][len(made_in.get(value, ())) :]
                extend(
                    value, self._spans[around[0]] if around else LiveSpan(span.first, span.first)
                )
        return spans


def most_at_once(held: Iterable[tuple[T, int, LiveSpan]]) -> list[T]:
    """Return the items that are live at the point where the sum of live sizes peaks."""
    held = list(held)
    best: list[tuple[T, int, LiveSpan]] = []
    for _, _, start in held:
        live = [triple for triple in held if triple[2].first <= start.first <= triple[2].last]
        if sum(size for _, size, _ in live) > sum(size for _, size, _ in best):
            best = live
    return [item for item, _, _ in best]


def is_structured(function: Function) -> bool:
    """Return whether each region of a function is one block, so that order says what is live."""
    return all(len(region.blocks) <= 1 for region in _regions(function.body))


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for block in region.blocks:
        for op in block.ops:
            for inner in op.regions:
                yield from _regions(inner)


def _yielded(region: Region) -> Sequence[Value]:
    """Return what a region yields; one that yields nothing may end in any operation."""
    last = region.entry.ops[-1] if region.blocks and region.entry.ops else None
    return last.operands if last is not None and last.name in _TERMINATORS else ()
