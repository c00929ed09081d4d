"""``tt.reduce`` and ``tt.scan``: usual combines by name, any other as a small program."""

from __future__ import annotations

from kernbench.commands import Reduce
from kernbench.kernel_ir.evaluation.evaluator import Evaluator
from kernbench.kernel_ir.ops.diagnostics import message_of
from kernbench.kernel_ir.ops.regions import build_region, is_overflow_message
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Block, Op, Value, arith
from kernbench.kernel_ir.text.rules import MANY, yields

DIALECT = Dialect()

NAMED = arith(
    "addf addi mulf muli maxnumf minnumf maximumf minimumf maxsi minsi maxui minui andi ori xori"
)
"""Combining functions that ``Reduce.combine`` gives by name; each is associative and symmetric."""

_ORDER = {
    ("arith.cmpf", "ogt"): "argmax",
    ("arith.cmpi", "sgt"): "argmax",
    ("arith.cmpi", "ugt"): "argmaxu",
    ("arith.cmpf", "olt"): "argmin",
    ("arith.cmpi", "slt"): "argmin",
    ("arith.cmpi", "ult"): "argminu",
}


def _check(op: Op) -> str | None:
    axis = op.attrs.get("axis")
    if not op.operands or len(op.regions) != 1:
        return "must have operands and a region"
    shape = op.operands[0].type.shape
    if not isinstance(axis, int) or not 0 <= axis < len(shape):
        return f"has axis {axis!r}, which {op.operands[0].type} does not have"
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
            return f"passes an element of {value.type} to {arg.type}"
    return yields(op.regions[0], [arg.type for arg in block.args[: len(op.operands)]])


@DIALECT.op("tt.reduce", "tt.scan", operands=(1, MANY), results=None, check=_check)
def _reduce(run: Evaluator, op: Op) -> None:
    inputs = tuple(run.operand(op, index) for index in range(len(op.operands)))
    axis = op.attrs.get("axis")
    if not isinstance(axis, int) or not 0 <= axis < len(inputs[0].shape):
        raise run.unsupported(op, f"axis {axis!r} of a tile of shape {inputs[0].shape}")
    combine = named_combine(op.regions[0].entry)
    region = None if combine else build_region(run, op)
    dsts = tuple(run.result_tile(op, index) for index in range(len(op.results)))
    scan = ""
    if op.name == "tt.scan":
        scan = "reverse" if op.attrs.get("reverse") else "forward"
        if len(inputs) > 1:
            # Where a maximum stands so far is not where it stands in the end.
            combine, region = None, build_region(run, op)
    vector = run.vectors_of_reductions.get(op, 0)
    run.commands.append(
        Reduce(dsts, combine or "region", inputs, axis, op.line, region, scan, vector)
    )
    for result, dst in zip(op.results, dsts, strict=True):
        run.set(result, dst)


def named_combine(block: Block) -> str | None:
    """Return the name of a block's combining function, or None if it has none.

    The two-input forms are ``argmax`` and ``argmin`` (``argmaxu`` and ``argminu`` of unsigned
    numbers): the value that wins takes its index along, and of equal values the lowest index wins.
    """
    *ops, last = combining_ops(block)
    if len(block.args) == 2 and len(ops) == 1:
        (only,) = ops
        if (
            only.name in NAMED
            and set(only.operands) == set(block.args)
            and last.operands == only.results
        ):
            return only.name
    if len(block.args) == 4 and len(last.operands) == 2:
        return _arg_extreme(block)
    return None


def combining_ops(block: Block) -> tuple[Op, ...]:
    """Return a block's operations without Triton's overflow checks and what only they need."""
    if not any(op.name == "tt.assert" for op in block.ops):
        return block.ops
    needed: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(block.ops):
        is_check = op.name == "tt.assert" and is_overflow_message(message_of(op))
        if is_check or (op.results and not needed.intersection(op.results)):
            continue
        needed.update(op.operands)
        kept.append(op)
    return tuple(reversed(kept))


def _arg_extreme(block: Block) -> str | None:
    made_by = {result: op for op in block.ops for result in op.results}
    a, index_a, b, index_b = block.args
    value, index = (made_by.get(result) for result in block.ops[-1].operands)
    if value is None or index is None or value.name != "arith.select" != index.name:
        return None
    if index.name != "arith.select" or value.operands[0] is not index.operands[0]:
        return None
    if value.operands[1:] != (a, b) or index.operands[1:] != (index_a, index_b):
        return None
    wins = made_by.get(value.operands[0])
    if wins is None:
        return None
    tied = None
    if wins.name == "arith.ori":
        sides = [made_by.get(side) for side in wins.operands]
        ties = [side for side in sides if side is not None and side.name == "arith.andi"]
        orders = [side for side in sides if side is not None and side.name != "arith.andi"]
        if len(ties) != 1 or len(orders) != 1:
            return None
        tied, wins = ties[0], orders[0]
    if not _compares(wins, (a, b)):
        return None
    name = _ORDER.get((wins.name, _predicate(wins)))
    if tied is not None and not _breaks_ties(tied, made_by, (a, b), (index_a, index_b)):
        return None
    # Without a rule for ties Triton leaves the index open; the lowest is one of the right answers.
    return name


def _predicate(op: Op) -> str:
    words = op.attrs.get("words") or ("",)
    return str(words[0])


def _compares(op: Op, operands: tuple[Value, Value]) -> bool:
    return op.name in ("arith.cmpf", "arith.cmpi") and op.operands == operands


def _breaks_ties(
    tie: Op, made_by: dict[Value, Op], values: tuple[Value, Value], indices: tuple[Value, Value]
) -> bool:
    """Whether the op is ``a == b and index_a < index_b``."""
    sides = [made_by.get(side) for side in tie.operands]
    equal = any(s and _compares(s, values) and _predicate(s) in ("oeq", "eq") for s in sides)
    lower = any(s and _compares(s, indices) and _predicate(s) in ("slt", "ult") for s in sides)
    return equal and lower
