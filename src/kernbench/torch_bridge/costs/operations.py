"""Schedules of operations, by the operation and its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from torch import Tensor, float4_e2m1fn_x2, strided

from kernbench.dtypes import float32, int8
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.costs.aten import launches_of
from kernbench.torch_bridge.costs.attention import AttentionCosts, FlashAttentionCosts
from kernbench.torch_bridge.costs.by_bytes import chain_ps, timing_by_bytes, vector_ps
from kernbench.torch_bridge.costs.cold_operands import cold_operands
from kernbench.torch_bridge.costs.convolutions import ConvolutionCosts, is_planar
from kernbench.torch_bridge.costs.factorizations import factorization_of
from kernbench.torch_bridge.costs.gemm import GemmCosts
from kernbench.torch_bridge.costs.given_shapes import GivenShapes
from kernbench.torch_bridge.costs.library import timing_of_blocks
from kernbench.torch_bridge.costs.norms import NormWeightCosts, rows_ps
from kernbench.torch_bridge.costs.products import (
    CONVOLUTIONS,
    PRODUCTS,
    RECURRENT,
    RECURRENT_ON_HOST,
    flops_of,
    layout_of,
    of_complex,
    operand_of,
    unfused,
)
from kernbench.torch_bridge.costs.recurrent import RecurrentCosts
from kernbench.torch_bridge.costs.rules import (
    CostRule,
    Reads,
    bytes_of_sort,
    reads_of_rows,
    rule_of,
)
from kernbench.torch_bridge.costs.scattered import (
    SECTOR,
    ScatteredCosts,
    Selection,
    are_unlike,
    has_steps,
    selection_of,
    spread_bytes,
    spread_of_copy,
)
from kernbench.torch_bridge.costs.sequences import in_turn

if TYPE_CHECKING:
    from kernbench.dtypes import DType
    from kernbench.hardware import Machine, SipSpec
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.base.operations import Operation
    from kernbench.torch_bridge.processes.float32 import Float32


class OperationCosts:
    """Schedules of operations on one machine; equal schedules are one object.

    They are cached by what determines a schedule: sizes and bytes. Recognizing repeated calls is
    left to the caller, who then need not ask again.
    """

    def __init__(self, machine: Machine, precision: Float32) -> None:
        self._machine = machine
        self._precision = precision
        self.gemm = GemmCosts(machine, precision)
        self._convolutions = ConvolutionCosts(machine)
        self._recurrent = RecurrentCosts(machine, self.gemm)
        self.attention = AttentionCosts(machine)
        self.flash_attention = FlashAttentionCosts(machine, self.attention)
        self._scattered = ScatteredCosts(machine)
        self._norm_weights = NormWeightCosts(machine)
        self._given = GivenShapes()
        self._by_bytes: dict[Any, OperationTiming] = {}
        self._rearrangements: dict[tuple[OperationTiming, int], OperationTiming] = {}
        """Timings with the bytes of a rearrangement added, by the timing and these bytes."""
        self.is_rounded = False
        """Whether products of float32 were timed as tf32."""
        self.unknown = Counter[str]()
        """Calls of operations whose arithmetic is not modeled, by name."""
        self.bounded: set[str] = set()
        """Operations whose time is a lower bound."""
        self.selecting: set[str] = set()
        """Operations that were timed as if elements that indices choose lay apart."""
        self.even_groups: set[str] = set()
        """Products of groups whose ends were not known: they were timed as groups of one size."""

    def timing(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        """Return the schedules of ``result = func(*args, **kwargs)`` on a SIP."""
        func, args = unfused(func, args)
        found = self._timing(func, operation, args, kwargs, result, sip_id)
        return self._given.timing(found, args, num_bytes(cold_operands(func, args, result)))

    def _timing(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        name = operation.name
        products = PRODUCTS.get(func)
        if products is not None:
            if operation.ends_at is not None and any(
                isinstance(each, Tensor) for each in args[operation.ends_at :][:1]
            ):
                self.even_groups.add(name)
            sizes = products(args, result)
            multiplied, stored = _first_dtype(operand_of(func, args, result)), _first_dtype(result)
            if multiplied.is_complex:
                sizes = of_complex(sizes)
                multiplied, stored = multiplied.to_real(), stored.to_real()
            dtype, out_dtype = kernel_dtype(multiplied), kernel_dtype(stored)
            if multiplied is float4_e2m1fn_x2 and out_dtype is not None:
                of_fp4 = self.gemm.of_fp4(name, sizes, out_dtype, sip_id)
                if of_fp4 is not None:
                    return of_fp4
            if dtype == int8 and int8.name not in self._rates(sip_id):
                # Older GPUs multiply integers on units that are not described.
                dtype = None
            if sizes and dtype is not None and out_dtype is not None:
                precision = self._precision_of(func, dtype, sip_id)
                if func in CONVOLUTIONS:
                    convolved = self._convolutions.timing(
                        name, args, result, dtype, sip_id, precision, flops_of(sizes)
                    )
                    if convolved is not None:
                        return convolved
                layout = layout_of(func, args, result)
                made = self.gemm.timing(name, sizes, dtype, out_dtype, sip_id, precision, layout)
                if func not in CONVOLUTIONS or (dtype == float32 and precision == "ieee"):
                    return made
                return self._rearranged(made, args, result, sip_id)
        if func in RECURRENT:
            dtype = kernel_dtype(args[0].dtype)
            precision = "ieee" if dtype is None else self._precision_of(func, dtype, sip_id)
            found = self._recurrent.timing(func, name, args, sip_id, precision)
        else:
            found = self.attention.timing(func, name, args, kwargs, sip_id)
        found = found or self._factorized(name, args, result, sip_id)
        found = found or self._by_blocks(func, operation, args, kwargs, result, sip_id)
        return found or self._streamed(func, operation, args, kwargs, result, sip_id)

    def _factorized(self, name: str, args: Any, result: Any, sip_id: int) -> OperationTiming | None:
        """Return the schedules of a factorization, None for what is none."""
        factorization = factorization_of(name, args)
        if factorization is None:
            return None
        if factorization.is_bound:
            self.bounded.add(name)
        sip = self._machine.sip_at(sip_id)
        read, written = num_bytes(args), num_bytes((result,))
        waits_ps = factorization.waits_ps(args[0], sip)
        key = (name, sip_id, read, written, waits_ps)
        found = self._by_bytes.get(key)
        if found is None:
            # Nobody has published the error of factorizations.
            found = timing_by_bytes(name, sip, read, written, chain_ps=waits_ps, family="")
            self._by_bytes[key] = found
        return found

    def streamed(self, name: str, read: int, written: int, sip_id: int) -> OperationTiming:
        """Return the schedules of a kernel that streams so many bytes."""
        key = (name, sip_id, read, written)
        found = self._by_bytes.get(key)
        if found is None:
            sip = self._machine.sip_at(sip_id)
            found = self._by_bytes[key] = timing_by_bytes(name, sip, read, written)
        return found

    def _rearranged(
        self, timing: OperationTiming, args: Any, result: Any, sip_id: int
    ) -> OperationTiming:
        """Return the time of a convolution including that of making its operands channels-last.

        Matrix engines need that layout, which ``torch.channels_last`` has already.
        """
        is_backward = isinstance(result, (list, tuple))
        x = args[1] if is_backward else args[0]
        if not is_planar(x):
            return timing
        # Weights are small compared with inputs; results have the layout of the input.
        made = args[0] if is_backward else result
        size_bytes = made.nbytes + (2 if is_backward and args[-1][0] else 1) * x.nbytes
        found = self._rearrangements.get((timing, size_bytes))
        if found is None:
            sip = self._machine.sip_at(sip_id)
            moves = timing_by_bytes("", sip, size_bytes, size_bytes)
            found = self._rearrangements[timing, size_bytes] = in_turn(timing, moves)
        return found

    def _precision_of(self, func: Any, dtype: DType, sip_id: int) -> str:
        """Return the ``input_precision`` of ``tl.dot`` for an operation's products."""
        if dtype != float32:
            return "ieee"
        found = self._precision.matmul
        if func in CONVOLUTIONS:
            found = self._precision.convolution
        elif func in RECURRENT or func in RECURRENT_ON_HOST:
            found = self._precision.recurrent
        if found in self._rates(sip_id):
            self.is_rounded = True
        return found

    def _rates(self, sip_id: int) -> Mapping[str, Any]:
        return self._machine.sip_at(sip_id).pe.gemm.flops_per_clock

    def _streamed(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming:
        rule = rule_of(func)
        if not rule.is_known:
            self.unknown[operation.name] += 1
        given = (*args, *kwargs.values()) if kwargs else args
        sip = self._machine.sip_at(sip_id)
        if rule.sorts:
            read, written = bytes_of_sort(args, kwargs)
        else:
            selection = self._selection(rule, operation, args, sip)
            read, written = _moved(rule, operation, args, given, result, sip, selection)
        summed = self._norm_weights.columns(operation.name, args)
        if summed:
            read //= 2
        if rule.of_batch:
            moved = (read, written)
            trains = rule.has_second_pass(args)
            normed = self._convolutions.norm(operation.name, args[0], moved, trains, sip_id)
            if normed is not None:
                return normed
        elements = most_elements((*given, result)) if rule.work else 0
        planes = _planes(result) if rule.by_position else 0
        spread = _spread(rule, operation, args, given, result)
        copied = tuple(_copied(rule, args))
        rows = rows_ps(self._machine, operation.name, args, sip_id)
        key = (
            operation.name,
            sip_id,
            read,
            written,
            elements,
            planes,
            spread,
            copied,
            summed,
            rows,
        )
        found = self._by_bytes.get(key)
        if found is None:
            if spread is not None:
                made = most_elements((result,))
                found = self._scattered.timing(operation.name, made, read, written, sip_id, spread)
            if found is None:
                math_ps = rule.passes * vector_ps(sip, rule.work, elements)
                of_math = {
                    cost.value: rule.passes * elements * count for cost, count in rule.work.items()
                }
                waits_ps = chain_ps(sip, planes, elements // planes) if planes else rows
                found = timing_by_bytes(
                    operation.name, sip, rule.passes * read, written, math_ps, waits_ps, of_math
                )
            if rule.clones:
                found = in_turn(timing_by_bytes(operation.name, sip, written, written), found)
            for made, size, spread in copied:
                copy = self._scattered.timing(operation.name, made, size, size, sip_id, spread)
                found = in_turn(copy or timing_by_bytes(operation.name, sip, size, size), found)
            if summed:
                found = in_turn(found, self._norm_weights.timing(args[0], summed, sip_id))
            self._by_bytes[key] = found
        return found

    def _by_blocks(
        self,
        func: Any,
        operation: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        sip_id: int,
    ) -> OperationTiming | None:
        """Return the schedules of kernels whose blocks are known, None of others."""
        sip = self._machine.sip_at(sip_id)
        if self._machine.spec.kernel_library is None:
            # No GPU: kernels of its own, whatever these are.
            return None
        launches = launches_of(func, args, kwargs, result, sip)
        if launches is None:
            return None
        copied = tuple(_copied(rule_of(func), args))
        key = (operation.name, sip_id, tuple(launches), copied)
        found = self._by_bytes.get(key)
        if found is None:
            found = timing_of_blocks(operation.name, launches, sip)
            for made, size, spread in copied:
                copy = self._scattered.timing(operation.name, made, size, size, sip_id, spread)
                found = in_turn(copy or timing_by_bytes(operation.name, sip, size, size), found)
            self._by_bytes[key] = found
        return found

    def _selection(
        self, rule: CostRule, operation: Operation, args: Any, sip: SipSpec
    ) -> Selection | None:
        """Return what an operation selects by indices, and note what its time assumes."""
        if rule.reads is not Reads.SELECTED:
            return None
        found = selection_of(operation.name, args)
        if found is not None and found.assumes(sip):
            self.selecting.add(operation.name)
        return found


def _copied(rule: CostRule, args: Any) -> Iterator[tuple[int, int, int]]:
    """Yield elements, bytes and spread bytes of operands that are made contiguous first."""
    for position in rule.copies:
        each = args[position]
        if has_steps(each) and not each.is_contiguous():
            yield each.numel(), each.nbytes, spread_of_copy(each)


def _spread(rule: CostRule, operation: Operation, args: Any, given: Any, result: Any) -> int | None:
    """Return the bytes of sectors that are loaded besides the elements that are needed.

    None where lanes beside each other load elements beside each other.
    """
    if rule.sampled_rows:
        return result.numel() * rule.sampled_rows * SECTOR if is_planar(args[0]) else None
    if operation.is_elementwise and are_unlike((*given, result)):
        return spread_bytes(given, result)
    return None


def _moved(
    rule: CostRule,
    operation: Operation,
    args: Any,
    given: Any,
    result: Any,
    sip: SipSpec,
    selection: Selection | None,
) -> tuple[int, int]:
    """Return the bytes that a stream reads from HBM and writes to it."""
    over = num_bytes([args[each] for each in operation.written if each < len(args)])
    written = over or num_bytes((result,))
    read = num_bytes(given)
    if rule.reads is Reads.SOURCES:
        read -= over
    elif rule.reads is Reads.SELECTED:
        if selection is None:
            read = _selected_bytes(given, written if not over else 0)
            written = min(written, read)
        else:
            loaded, stored = selection.moved(sip)
            read += loaded - num_bytes(args[:1])
            if selection.changes:
                # A form that makes its result copies the table first.
                copied = 0 if over else written
                read, written = read + copied, stored + copied
    elif rule.reads is Reads.FEW:
        read = _selected_bytes(given, 0)
    read = round(read * reads_of_rows(operation.name, args, sip))
    if rule.has_second_pass(args):
        read += num_bytes(args[each] for each in rule.rereads)
    return read, written


def _planes(image: Tensor) -> int:
    """Return how many planes an image has; 0 where the channels of a position are contiguous."""
    return prod(image.shape[:2]) if is_planar(image) else 0


def _first_dtype(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.dtype
    return next((each.dtype for each in result if isinstance(each, Tensor)), None)


def num_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of all tensors among values, also of those in lists.

    An element that a dim of stride 0 shows more than once counts once.
    """
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is not strided:
                total += _sparse_bytes(value)
            elif has_steps(value) and 0 in value.stride():
                total += _expanded_bytes(value)
            else:
                total += value.nbytes
        elif isinstance(value, (list, tuple)):
            total += num_bytes(value)
    return total


def _expanded_bytes(value: Tensor) -> int:
    count = value.element_size()
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= size if stride or not size else 1
    return count


def _sparse_bytes(value: Tensor) -> int:
    """Return the bytes of a sparse tensor's elements and of their indices."""
    count = value._nnz()
    return count * (value.element_size() + 8 * value.dim())


def most_elements(values: Iterable[Any]) -> int:
    """Return the elements of the largest tensor, or list of tensors, among values."""
    most = 0
    for value in values:
        if isinstance(value, Tensor):
            most = max(most, value.numel())
        elif isinstance(value, (list, tuple)):
            most = max(most, sum(each.numel() for each in value if isinstance(each, Tensor)))
    return most


def _selected_bytes(values: Iterable[Any], selected: int) -> int:
    """Return the bytes that a selection reads: its result, and all operands but the largest."""
    sizes = sorted(num_bytes((value,)) for value in values)
    return selected + sum(sizes[:-1])
