"""What must hold of an operation before it is evaluated: how many values it takes, of which types.

Text that Triton printed is sound. Text that somebody edited need not be: here it is refused, with
the line of the text, so that the evaluator may rely on what its handlers take for granted.
Operations that are not listed are left to their handlers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernbench.errors import KernelParseError
from kernbench.kernel_ir.text.ir import Function, Op, Region, Type

Check = Callable[[Op], str | None]
"""Returns what is wrong with an operation, or None."""

_HAND_OVER = ("scf.yield", "tt.reduce.return", "tt.scan.return")
_ENDS = frozenset({"tt.return", "cf.br", "cf.cond_br"})
_MANY = 1 << 12
_MOST_ELEMENTS = 1 << 20
"""Triton's own limit on the elements of a tensor."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``operands`` are the fewest and the most; ``results`` is None where the check counts."""

    operands: tuple[int, int]
    results: int | None
    check: Check | None = None


def verify(functions: Mapping[str, Function]) -> None:
    """Refuse functions with operations that cannot be.

    Raises:
        KernelParseError: One takes values that it cannot; names the line of the text.
    """
    for function in functions.values():
        ends = [block.ops[-1].name if block.ops else "" for block in function.body.blocks]
        if function.result_types and not _ENDS.issuperset(ends):
            raise KernelParseError(f"function {function.name} has a block that returns nothing")
        for op in _operations(function.body):
            if op.name == "tt.call":
                problem = _call(op, functions)
            elif op.name == "tt.return":
                problem = _return(op, function)
            else:
                problem = _problem(op)
            if problem is not None:
                raise KernelParseError(
                    f"line {op.text_line} of the TTIR text: {op.name} in {function.name} {problem}"
                )


def _call(op: Op, functions: Mapping[str, Function]) -> str | None:
    """Check a call of a function of this module; which one it is, the evaluator tells."""
    for name in (str(word).removeprefix("@").strip('"') for word in op.attrs.get("literals", ())):
        called = functions.get(name)
        if called is not None:
            params = [param.type for param in called.params]
            if not _are_alike([value.type for value in op.operands], params):
                return f"hands {len(op.operands)} values to {name}, which takes other parameters"
            if not _are_alike([value.type for value in op.results], list(called.result_types)):
                return f"takes {len(op.results)} results from {name}, which returns others"
    return None


def _return(op: Op, function: Function) -> str | None:
    if _are_alike([value.type for value in op.operands], list(function.result_types)):
        return None
    return f"returns {len(op.operands)} values, but {function.name} others"


def _operations(region: Region) -> Iterator[Op]:
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _operations(inner)


def _problem(op: Op) -> str | None:
    for value in op.results:
        if math.prod(value.type.shape) > _MOST_ELEMENTS:
            return f"makes {value.type}, but a tensor has at most {_MOST_ELEMENTS:,} elements"
    rule = _RULES.get(op.name)
    if rule is None:
        return None
    fewest, most = rule.operands
    if not fewest <= len(op.operands) <= most:
        expected = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"must have {expected} operands, but has {len(op.operands)}"
    if rule.results is not None and len(op.results) != rule.results:
        return f"must have {rule.results} results, but has {len(op.results)}"
    return None if rule.check is None else rule.check(op)


# -- types ------------------------------------------------------------------------------------


def _alike(a: Type, b: Type) -> bool:
    return (a.shape, a.dtype, a.is_pointer, a.is_descriptor) == (
        b.shape,
        b.dtype,
        b.is_pointer,
        b.is_descriptor,
    )


def _is_integer(type_: Type) -> bool:
    return type_.is_int or type_.is_bool


def _is_float(type_: Type) -> bool:
    return type_.is_float


def _elementwise(accepts: Callable[[Type], bool]) -> Check:
    """Return the check that operands and result are of one type, which ``accepts`` takes."""

    def check(op: Op) -> str | None:
        result = op.results[0].type
        for value in op.operands:
            if not _alike(value.type, result) or not accepts(value.type):
                return f"takes {value.type} for {result}"
        return None

    return check


def _comparison(accepts: Callable[[Type], bool]) -> Check:
    def check(op: Op) -> str | None:
        a, b = (value.type for value in op.operands)
        result = op.results[0].type
        if not _alike(a, b) or not accepts(a) or a.shape != result.shape or not result.is_bool:
            return f"compares {a} with {b} for {result}"
        return None

    return check


def _select(op: Op) -> str | None:
    condition, a, b = (value.type for value in op.operands)
    result = op.results[0].type
    if not condition.is_bool or condition.shape not in ((), result.shape):
        return f"chooses by {condition}"
    if not _alike(a, result) or not _alike(b, result):
        return f"chooses between {a} and {b} for {result}"
    return None


def _conversion(source: Callable[[Type], bool], target: Callable[[Type], bool]) -> Check:
    def check(op: Op) -> str | None:
        given, made = op.operands[0].type, op.results[0].type
        if given.shape != made.shape or not source(given) or not target(made):
            return f"converts {given} to {made}"
        return None

    return check


def _width(check: Check, fits: Callable[[int, int], bool]) -> Check:
    def checked(op: Op) -> str | None:
        problem = check(op)
        if problem is None:
            given, made = op.operands[0].type, op.results[0].type
            if not fits(given.bits, made.bits):
                return f"converts {given} to {made}"
        return problem

    return checked


# -- shapes -----------------------------------------------------------------------------------


def _same_elements(op: Op) -> bool:
    a, b = op.operands[0].type, op.results[0].type
    return (a.dtype, a.is_pointer) == (b.dtype, b.is_pointer)


def _shaped(fits: Callable[[tuple[int, ...], tuple[int, ...], dict[str, Any]], bool]) -> Check:
    """Return the check that ``fits`` takes the shapes of operand and result and the attributes."""

    def check(op: Op) -> str | None:
        given, made = op.operands[0].type, op.results[0].type
        if not _same_elements(op) or not fits(given.shape, made.shape, op.attrs):
            return f"makes {made} of {given}"
        return None

    return check


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...], _: dict[str, Any]) -> bool:
    return len(a) == len(b) and all(x in (1, y) for x, y in zip(a, b, strict=True))


def _expands(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Any]) -> bool:
    axis = attrs.get("axis")
    return isinstance(axis, int) and 0 <= axis <= len(a) and (*a[:axis], 1, *a[axis:]) == b


def _transposes(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, Any]) -> bool:
    order = attrs.get("order")
    if order is None:
        return sorted(a) == sorted(b)
    try:
        axes = [int(axis) for axis in order]
    except (TypeError, ValueError):
        return False
    return sorted(axes) == list(range(len(a))) and tuple(a[axis] for axis in axes) == b


def _reshapes(a: tuple[int, ...], b: tuple[int, ...], _: dict[str, Any]) -> bool:
    return math.prod(a) == math.prod(b)


def _splits(a: tuple[int, ...], b: tuple[int, ...], _: dict[str, Any]) -> bool:
    return a == (*b, 2)


def _joins(op: Op) -> str | None:
    a, b = (value.type for value in op.operands)
    made = op.results[0].type
    if op.name == "tt.join":
        doubled = (*a.shape, 2)
    else:
        doubled = (2 * a.shape[0], *a.shape[1:]) if a.shape else ()
    if not _alike(a, b) or not _same_elements(op) or made.shape != doubled:
        return f"makes {made} of {a} and {b}"
    return None


def _make_range(op: Op) -> str | None:
    start, end, made = op.attrs.get("start"), op.attrs.get("end"), op.results[0].type
    if not isinstance(start, int) or not isinstance(end, int):
        return "must have integers start and end"
    if made.shape != (end - start,) or not made.is_int:
        return f"counts from {start} to {end} for {made}"
    return None


# -- memory and products ----------------------------------------------------------------------


def _addptr(op: Op) -> str | None:
    pointer, offset = (value.type for value in op.operands)
    if not pointer.is_pointer or not offset.is_int or pointer.shape != offset.shape:
        return f"adds {offset} to {pointer}"
    return None if _alike(pointer, op.results[0].type) else f"makes {op.results[0].type}"


def _memory(op: Op) -> str | None:
    """Check a load or a store through pointers; block pointers are the handler's."""
    pointer = op.operands[0].type
    if pointer.is_descriptor:
        return None
    if not pointer.is_pointer or pointer.dtype is None:
        return f"uses {pointer} as an address"
    is_load = op.name == "tt.load"
    masks = op.operands[1:2] if is_load else op.operands[2:3]
    values = [*op.operands[2:3], *op.results] if is_load else op.operands[1:2]
    for mask in masks:
        if not mask.type.is_bool or mask.type.shape != pointer.shape:
            return f"is masked by {mask.type} at {pointer}"
    for value in values:
        if value.type.shape != pointer.shape or value.type.dtype != pointer.dtype:
            return f"moves {value.type} at {pointer}"
    return None


def _atomic(op: Op) -> str | None:
    pointer = op.operands[0].type
    num_values = 1 if op.name == "tt.atomic_rmw" else 2
    values, masks = op.operands[1 : 1 + num_values], op.operands[1 + num_values :]
    for value in (*values, *op.results):
        if value.type.shape != pointer.shape or value.type.dtype != pointer.dtype:
            return f"changes {pointer} by {value.type}"
    for mask in masks:
        if not mask.type.is_bool or mask.type.shape != pointer.shape:
            return f"is masked by {mask.type} at {pointer}"
    return None if pointer.is_pointer else f"uses {pointer} as an address"


def _dot(op: Op) -> str | None:
    a, b, acc = (value.type for value in op.operands)
    made = op.results[0].type
    rank = len(made.shape)
    if rank < 2 or {len(a.shape), len(b.shape)} != {rank} or not _alike(acc, made):
        return f"multiplies {a} by {b} onto {acc} for {made}"
    *batch, m, n = made.shape
    if a.shape[:-1] != (*batch, m) or b.shape != (*batch, a.shape[-1], n):
        return f"multiplies {a} by {b} onto {acc} for {made}"
    floats = {_is_float(type_) for type_ in (a, b, made)}
    if len(floats) > 1 or any(type_.dtype is None or type_.is_pointer for type_ in (a, b, made)):
        return f"multiplies {a} by {b} onto {acc} for {made}"
    return None


def _reduction(op: Op) -> str | None:
    axis = op.attrs.get("axis")
    if not op.operands or len(op.regions) != 1:
        return "must have operands and a region"
    shape = op.operands[0].type.shape
    if not isinstance(axis, int) or not 0 <= axis < len(shape):
        return f"goes along axis {axis!r} of {op.operands[0].type}"
    left = shape if op.name == "tt.scan" else (*shape[:axis], *shape[axis + 1 :])
    if len(op.results) != len(op.operands):
        return f"must have {len(op.operands)} results, but has {len(op.results)}"
    for value, result in zip(op.operands, op.results, strict=True):
        if value.type.shape != shape or result.type.shape != left:
            return f"makes {result.type} of {value.type}"
        if value.type.dtype != result.type.dtype:
            return f"makes {result.type} of {value.type}"
    block = op.regions[0].entry
    if len(block.args) != 2 * len(op.operands):
        return f"combines {2 * len(op.operands)} elements, but its region takes {len(block.args)}"
    for arg, value in zip(block.args, (*op.operands, *op.operands), strict=True):
        if arg.type.shape or arg.type.dtype != value.type.dtype:
            return f"hands an element of {value.type} to {arg.type}"
    return _yields(op.regions[0], [arg.type for arg in block.args[: len(op.operands)]])


# -- control flow -----------------------------------------------------------------------------


def _yields(region: Region, types: list[Type]) -> str | None:
    """Check what the region's last operation hands over."""
    last = region.blocks[-1].ops[-1:] if region.blocks else ()
    # A body that hands over nothing prints no terminator.
    values = last[0].operands if last and last[0].name in _HAND_OVER else ()
    if len(values) != len(types):
        return f"must hand over {len(types)} values, but its region hands over {len(values)}"
    for value, type_ in zip(values, types, strict=True):
        if not _alike(value.type, type_):
            return f"hands over {value.type} for {type_}"
    return None


def _for(op: Op) -> str | None:
    if len(op.operands) < 3 or len(op.regions) != 1:
        return "must have bounds, a step and a body"
    bounds, inits = op.operands[:3], op.operands[3:]
    if any(not value.type.is_int or value.type.shape for value in bounds):
        return f"counts with {', '.join(str(value.type) for value in bounds)}"
    if len(op.results) != len(inits):
        return f"carries {len(inits)} values, but has {len(op.results)} results"
    args = op.regions[0].entry.args[1:]
    for init, arg, result in zip(inits, args, op.results, strict=True):
        if not _alike(init.type, arg.type) or not _alike(init.type, result.type):
            return f"carries {init.type} as {arg.type}"
    return _yields(op.regions[0], [arg.type for arg in args])


def _if(op: Op) -> str | None:
    condition = op.operands[0].type if len(op.operands) == 1 else None
    if condition is None or not condition.is_bool or condition.shape:
        return "must have one condition of type i1"
    types = [value.type for value in op.results]
    if types and len(op.regions) != 2:
        return f"has {len(types)} results but no else"
    for region in op.regions:
        problem = _yields(region, types)
        if problem is not None:
            return problem
    return None


def _while(op: Op) -> str | None:
    before, after = op.regions
    inits = [value.type for value in op.operands]
    if not _are_alike([arg.type for arg in before.entry.args], inits):
        return f"carries {len(inits)} values, but its condition takes others"
    last = before.entry.ops[-1] if before.entry.ops else None
    if last is None or last.name != "scf.condition" or not last.operands:
        return "must end its first region with scf.condition"
    if not last.operands[0].type.is_bool or last.operands[0].type.shape:
        return f"goes on by {last.operands[0].type}"
    handed = [value.type for value in last.operands[1:]]
    for taken in (op.results, after.entry.args):
        if not _are_alike([value.type for value in taken], handed):
            return f"hands on {len(handed)} values that its results or its body do not take"
    return _yields(after, inits)


def _are_alike(a: list[Type], b: list[Type]) -> bool:
    return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))


# -- blocks of a tensor -----------------------------------------------------------------------


def _describes(op: Op) -> str | None:
    """Check a descriptor or a block pointer: a base, then lengths, strides and maybe a start."""
    parts = 2 if op.name == "tt.make_tensor_descriptor" else 3
    rank = len(op.results[0].type.shape)
    if len(op.operands) != 1 + parts * rank:
        return f"must have {1 + parts * rank} operands, but has {len(op.operands)}"
    base, *numbers = (value.type for value in op.operands)
    if not base.is_pointer or base.shape or base.dtype != op.results[0].type.dtype:
        return f"describes {base} as {op.results[0].type}"
    if any(not number.is_int or number.shape for number in numbers):
        return "must have whole numbers for lengths and strides"
    return None


def _block(op: Op) -> str | None:
    """Check what moves, or loads or stores, a block at a position."""
    tensor = op.operands[0].type
    rank = len(tensor.shape)
    extra = 1 if "store" in op.name else 0
    if not tensor.is_descriptor or len(op.operands) != 1 + rank + extra:
        return f"must have a tensor, {rank} numbers and {extra} values, not {len(op.operands)}"
    if any(not value.type.is_int or value.type.shape for value in op.operands[1 : 1 + rank]):
        return "must have whole numbers for its position"
    for value in (*op.operands[1 + rank :], *op.results):
        type_ = value.type
        if type_.dtype != tensor.dtype or math.prod(type_.shape) != math.prod(tensor.shape):
            return f"moves {type_} at {tensor}"
    return None


_INTEGERS = (
    "addi subi muli divsi divui remsi remui floordivsi ceildivsi ceildivui minsi maxsi minui maxui "
    "andi ori xori shli shrsi shrui"
)
_FLOATS = "addf subf mulf divf remf maximumf minimumf maxnumf minnumf"
_UNARY = (
    "exp exp2 log log2 sqrt rsqrt sin cos tan tanh erf absf floor ceil round roundeven trunc negf"
)
_RULES: dict[str, _Rule] = {
    **{f"arith.{name}": _Rule((2, 2), 1, _elementwise(_is_integer)) for name in _INTEGERS.split()},
    **{f"arith.{name}": _Rule((2, 2), 1, _elementwise(_is_float)) for name in _FLOATS.split()},
    **{f"math.{name}": _Rule((1, 1), 1, _elementwise(_is_float)) for name in _UNARY.split()},
    "arith.negf": _Rule((1, 1), 1, _elementwise(_is_float)),
    "math.absi": _Rule((1, 1), 1, _elementwise(_is_integer)),
    "math.fma": _Rule((3, 3), 1, _elementwise(_is_float)),
    "tt.clampf": _Rule((3, 3), 1, _elementwise(_is_float)),
    "tt.precise_divf": _Rule((2, 2), 1, _elementwise(_is_float)),
    "tt.precise_sqrt": _Rule((1, 1), 1, _elementwise(_is_float)),
    "tt.mulhiui": _Rule((2, 2), 1, _elementwise(_is_integer)),
    "arith.constant": _Rule((0, 0), 1),
    "arith.cmpi": _Rule((2, 2), 1, _comparison(lambda t: _is_integer(t) or t.is_pointer)),
    "arith.cmpf": _Rule((2, 2), 1, _comparison(_is_float)),
    "arith.select": _Rule((3, 3), 1, _select),
    **{
        f"arith.{name}": _Rule(
            (1, 1), 1, _width(_conversion(_is_integer, _is_integer), lambda a, b: a < b)
        )
        for name in ("extsi", "extui")
    },
    "arith.trunci": _Rule(
        (1, 1), 1, _width(_conversion(_is_integer, _is_integer), lambda a, b: a > b)
    ),
    "arith.index_cast": _Rule((1, 1), 1, _conversion(_is_integer, _is_integer)),
    "arith.index_castui": _Rule((1, 1), 1, _conversion(_is_integer, _is_integer)),
    "arith.sitofp": _Rule((1, 1), 1, _conversion(_is_integer, _is_float)),
    "arith.uitofp": _Rule((1, 1), 1, _conversion(_is_integer, _is_float)),
    "arith.fptosi": _Rule((1, 1), 1, _conversion(_is_float, _is_integer)),
    "arith.fptoui": _Rule((1, 1), 1, _conversion(_is_float, _is_integer)),
    "arith.extf": _Rule((1, 1), 1, _conversion(_is_float, _is_float)),
    "arith.truncf": _Rule((1, 1), 1, _conversion(_is_float, _is_float)),
    "tt.fp_to_fp": _Rule((1, 1), 1, _conversion(_is_float, _is_float)),
    "tt.get_program_id": _Rule((0, 0), 1),
    "tt.get_num_programs": _Rule((0, 0), 1),
    "tt.make_range": _Rule((0, 0), 1, _make_range),
    "tt.splat": _Rule((1, 1), 1, _shaped(lambda a, b, _: a == ())),
    "tt.unsplat": _Rule((1, 1), 1, _shaped(lambda a, b, _: b == () and math.prod(a) == 1)),
    "tt.broadcast": _Rule((1, 1), 1, _shaped(_broadcasts)),
    "tt.expand_dims": _Rule((1, 1), 1, _shaped(_expands)),
    "tt.trans": _Rule((1, 1), 1, _shaped(_transposes)),
    "tt.reshape": _Rule((1, 1), 1, _shaped(_reshapes)),
    "tt.split": _Rule((1, 1), 2, _shaped(_splits)),
    "tt.join": _Rule((2, 2), 1, _joins),
    "tt.cat": _Rule((2, 2), 1, _joins),
    "tt.addptr": _Rule((2, 2), 1, _addptr),
    "tt.load": _Rule((1, 3), 1, _memory),
    "tt.store": _Rule((2, 3), 0, _memory),
    **{
        name: _Rule((0, _MANY), 0)
        for name in (
            "llvm.intr.assume",
            "gpu.barrier",
            "ttg.barrier",
            "ttg.local_barrier",
            "cf.assert",
            "tt.assert",
            "tt.print",
        )
    },
    "ub.poison": _Rule((0, 0), 1),
    "tt.atomic_rmw": _Rule((2, 3), 1, _atomic),
    "tt.atomic_cas": _Rule((3, 3), 1, _atomic),
    "tt.dot": _Rule((3, 3), 1, _dot),
    "tt.reduce": _Rule((1, _MANY), None, _reduction),
    "tt.scan": _Rule((1, _MANY), None, _reduction),
    "scf.for": _Rule((3, _MANY), None, _for),
    "scf.if": _Rule((1, 1), None, _if),
    "scf.while": _Rule((0, _MANY), None, _while),
    "tt.make_tensor_descriptor": _Rule((1, _MANY), 1, _describes),
    "tt.make_tensor_ptr": _Rule((1, _MANY), 1, _describes),
    "tt.advance": _Rule((1, _MANY), 1, _block),
    "tt.descriptor_load": _Rule((1, _MANY), 1, _block),
    "tt.descriptor_store": _Rule((2, _MANY), 0, _block),
}
