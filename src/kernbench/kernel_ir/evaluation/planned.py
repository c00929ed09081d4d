"""Which integers phase 1 has to know: those that may reach an address, a mask or control flow.

Others are data in all but name, such as the rounds of a random number generator. To spell them out
for all programs of a grid would take as long as to compute them, and again for every seed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from kernbench.kernel_ir.evaluation.values import ABSOLUTE
from kernbench.kernel_ir.text.ir import Function, Module, Op, Region, Value, arith

MIXING = arith("muli andi ori xori shli shrsi shrui") | {"tt.mulhiui"}
"""What hashes are made of. Of tiles that differ between programs these are commands on data where
nothing that phase 1 plans depends on them."""

_PASSED_ON = (
    MIXING
    | arith("addi subi extsi extui trunci cmpi select")
    | {"tt.bitcast", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"}
)
_TO_FLOAT = arith("sitofp uitofp")


# A memo, not state: modules do not change.
@functools.lru_cache(maxsize=256)
def planned_values(module: Module) -> frozenset[Value]:
    """Return the values that may reach an address, a mask, a loop or a branch."""
    planned: set[Value] = set()
    for function in module.functions.values():
        _add(function, planned)
    return frozenset(planned)


def _add(function: Function, planned: set[Value]) -> None:
    # Uses come after definitions, and what goes round a loop is handed over by a terminator.
    for op in reversed(list(function.body.walk())):
        for successor in op.successors:
            planned.update(successor.operands)
        planned.update(_needed(op, planned))


def _needed(op: Op, planned: set[Value]) -> tuple[Value, ...]:
    """Return the operands that phase 1 has to know for this operation."""
    if op.name in _TO_FLOAT:
        return ()
    if op.name == "tt.store":
        return (op.operands[0], *op.operands[2:])
    if op.name in _PASSED_ON and planned.isdisjoint(op.results):
        return ()
    return op.operands


_WRITES = frozenset(
    {
        "tt.store",
        "tt.atomic_rmw",
        "tt.atomic_cas",
        "tt.atomic_store",
        "tt.descriptor_store",
        "tt.descriptor_reduce",
        "tt.descriptor_scatter",
        "tt.experimental_descriptor_store",
        "ttng.async_tma_copy_local_to_global",
    }
)


def written_params(module: Module) -> frozenset[int]:
    """Return the parameters that some operation may write through.

    :data:`ABSOLUTE` is among them if it may be any address. Pointers are followed from operands to
    results, through regions, branches and calls, without asking which way is taken: never too few.
    """
    origins = _Origins(module)
    while origins.passed_on():
        pass
    return frozenset(
        origin for op in origins.ops if op.name in _WRITES for origin in origins.of(op.operands[:1])
    )


def makes_pointers(module: Module) -> bool:
    """Whether some operation makes a pointer out of a number."""
    return any(op.name == "tt.int_to_ptr" for op in module.walk())


class _Origins:
    def __init__(self, module: Module) -> None:
        self._known: dict[Value, frozenset[int]] = {
            param.value: frozenset({param.index})
            for param in module.kernel.params
            if param.type.is_pointer or param.type.is_descriptor
        }
        self._module = module
        self.ops = list(module.walk())
        self._regions = {
            op: region
            for function in module.functions.values()
            for op, region in _homes(function.body)
        }

    def of(self, values: Iterable[Value]) -> frozenset[int]:
        return frozenset().union(*(self._known.get(value, frozenset()) for value in values))

    def passed_on(self) -> bool:
        """Propagate origins once; return whether any was new."""
        changed = False
        for op in self.ops:
            changed |= self._pass_on(op)
        return changed

    def _pass_on(self, op: Op) -> bool:
        sources = self.of(op.operands)
        if op.name == "tt.int_to_ptr":
            sources |= {ABSOLUTE}
        targets = list(op.results)
        for region in op.regions:
            for block in region.blocks:
                targets += block.args
                if block.ops:
                    sources |= self.of(block.ops[-1].operands)
        if op.name == "tt.call":
            for function in self._module.functions.values():
                if function is not self._module.kernel:
                    targets += function.body.entry.args
                    for block in function.body.blocks:
                        sources |= self.of(block.ops[-1].operands) if block.ops else frozenset()
        changed = self._add(targets, sources)
        for successor in op.successors:
            for block in self._regions[op].blocks:
                if block.label == successor.label:
                    changed |= self._add(block.args, self.of(successor.operands))
        return changed

    def _add(self, targets: Iterable[Value], sources: frozenset[int]) -> bool:
        changed = False
        for value in targets:
            if value.type.is_pointer or value.type.is_descriptor:
                before = self._known.get(value, frozenset())
                if not sources <= before:
                    self._known[value] = before | sources
                    changed = True
        return changed


def _homes(region: Region) -> Iterator[tuple[Op, Region]]:
    for block in region.blocks:
        for op in block.ops:
            yield op, region
            for inner in op.regions:
                yield from _homes(inner)
