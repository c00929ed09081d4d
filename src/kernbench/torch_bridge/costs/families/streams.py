"""Operations that stream their operands through HBM: all that no other family has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.commands import MathClass
from kernbench.library_kernels import aten
from kernbench.torch_bridge.costs.by_bytes import (
    BY_BYTES_ALONE,
    MEMBOUND,
    timing_by_bytes,
    vector_ps,
)
from kernbench.torch_bridge.costs.library import timing_of_blocks
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.rules import CostRule, Reads, reads_of_rows, rule_of
from kernbench.torch_bridge.costs.scattered import (
    are_unlike,
    has_steps,
    spread_bytes,
    spread_of_copy,
)
from kernbench.torch_bridge.costs.sequences import in_turn
from kernbench.torch_bridge.costs.tensor_bytes import most_elements, num_bytes

if TYPE_CHECKING:
    from kernbench.hardware import SipSpec
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.costs.operations import OperationCosts


class Stream(NamedTuple):
    """A launch of a kernel that reads and writes so many bytes."""

    read: int
    written: int
    elements: int = 0
    work: tuple[tuple[MathClass, int], ...] = ()
    """The operations on each of these elements."""
    passes: int = 1
    """How many times it does all of it."""
    waits_ps: int = 0
    """How long its loads wait for each other, or its blocks for a place."""
    spread: int | None = None
    """Bytes of sectors that are loaded besides the elements that are needed; None where lanes
    beside each other load elements beside each other."""
    is_alone: bool = False
    """Whether these bytes are all that is modeled of it."""


Streams = tuple[Stream, ...]
"""Launches one after another, of which the last is the operation itself."""


def key(costs: OperationCosts, call: OperationCall) -> Streams:
    """Return what a call launches by the rule of its operation."""
    rule = rule_of(call.func)
    if not rule.is_known:
        costs.unknown[call.name] += 1
    value, result = call.arguments, call.result
    read, written = moved(rule, call)
    elements = most_elements((*value, result)) if rule.work else 0
    stream = Stream(read, written, elements, rule.work, rule.passes, is_alone=not rule.is_stream)
    if call.operation.is_elementwise and are_unlike((*value, result)):
        stream = spread_out(costs, stream, result, spread_bytes(value, result))
    if rule.clones:
        return Stream(written, written), stream
    return (*copies(costs, call), stream)


def spread_out(costs: OperationCosts, stream: Stream, result: Any, spread: int) -> Stream:
    """Return a stream that makes a result out of elements in so many more bytes of sectors.

    The same stream where kernels are not those of a GPU.
    """
    if costs.library is None:
        return stream
    return Stream(stream.read, stream.written, most_elements((result,)), spread=spread)


def copies(costs: OperationCosts, call: OperationCall) -> Iterator[Stream]:
    """Yield the copies that make operands of a call contiguous, the last operand first."""
    for position in reversed(rule_of(call.func).copies):
        argument = call.args[position]
        if has_steps(argument) and not argument.is_contiguous():
            copy = Stream(argument.nbytes, argument.nbytes)
            yield spread_out(costs, copy, argument, spread_of_copy(argument))


def moved(rule: CostRule, call: OperationCall) -> tuple[int, int]:
    """Return the bytes that a stream reads from HBM and writes to it."""
    over, read, written = bytes_of(call)
    if rule.reads is Reads.SOURCES:
        read -= over
    elif rule.reads is Reads.FEW:
        read = without_largest(call.arguments)
    read *= reads_of_rows(call.name, call.args)
    if rule.has_second_pass(call.args):
        read += num_bytes(call.args[reread] for reread in rule.rereads)
    return read, written


def bytes_of(call: OperationCall) -> tuple[int, int, int]:
    """Return the bytes of arguments that a call changes, of all that it is given, and of results.

    These are the changed arguments, if there are any.
    """
    args = call.args
    over = num_bytes([args[number] for number in call.operation.written if number < len(args)])
    return over, num_bytes(call.arguments), over or num_bytes((call.result,))


def without_largest(values: Iterable[Any]) -> int:
    """Return the bytes of all operands but the largest, of which few elements are read."""
    return sum(sorted(num_bytes((value,)) for value in values)[:-1])


def kernels(costs: OperationCosts, name: str, streams: Streams, sip_id: int) -> OperationTiming:
    """Return the schedules of launches one after another."""
    sip = costs.machine.sip_at(sip_id)
    *before, timing = (_timing(costs, name, stream, sip) for stream in streams)
    for operation_timing in reversed(before):
        timing = in_turn(operation_timing, timing)
    return timing


def _timing(costs: OperationCosts, name: str, stream: Stream, sip: SipSpec) -> OperationTiming:
    read, written, elements, work, passes, waits_ps, spread, is_alone = stream
    if spread is not None:
        return timing_of_blocks(name, (aten.unlike(elements, read, written, spread),), sip)
    math_ps = passes * vector_ps(sip, dict(work), elements)
    of_math = {cost.value: passes * elements * count for cost, count in work}
    family = BY_BYTES_ALONE if is_alone else MEMBOUND
    moved = (passes * read, written)
    return timing_by_bytes(name, sip, *moved, math_ps, waits_ps, of_math, family=family)


FAMILY = Family(matches=lambda func: False, key=key, kernels=kernels)
