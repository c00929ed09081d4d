"""Structured control flow: loops that roll, loops that unroll, branches, calls."""

from __future__ import annotations

from kernbench.commands import NotSeparableError, Predicate, Separable, Splat
from kernbench.errors import UnsupportedOpError
from kernbench.kernel_ir.evaluation import integers
from kernbench.kernel_ir.evaluation.evaluator import Evaluator, SplitPrograms, UnrollLoops
from kernbench.kernel_ir.evaluation.loops import Iterations, run_parts, run_rolled
from kernbench.kernel_ir.evaluation.values import Held, is_known, leaves, same_frame, with_leaves
from kernbench.kernel_ir.ops.registry import Dialect
from kernbench.kernel_ir.text.ir import Op
from kernbench.kernel_ir.text.rules import MANY, alike, are_alike, yields

DIALECT = Dialect()

_MAX_ITERATIONS = 100_000
_MAX_TRIPS = 1 << 22


def iterations_of(run: Evaluator, op: Op) -> Iterations:
    """Return which iterations an ``scf.for`` has."""
    bounds = [run.get(value) for value in op.operands[:3]]
    if not all(isinstance(bound, Separable) for bound in bounds):
        raise run.needs_data(op, "its bounds depend on data")
    low, high, step = (run.integer(op, index) for index in range(3))
    bits = op.operands[0].type.bits
    if op.attrs.get("unsigned"):
        low, high, step = (integers.to_unsigned(separable, bits) for separable in (low, high, step))
    if step.bounds()[0] <= 0:
        raise run.unsupported(op, f"its step must be positive, but is {step.bounds()[0]}")
    # Bounds are far from 2**63, so the ceiling division may be done on 64 bits.
    span = high - low
    trips = integers.binary("arith.ceildivsi", span, step, 64)
    trips = integers.binary("arith.maxsi", trips, Separable(()), 64)
    iterations = Iterations(low, step, *run.trip_count(op, trips))
    if iterations.count > _MAX_TRIPS:
        raise run.unsupported(
            op,
            f"it runs {iterations.count:,} times in one program, but at most {_MAX_TRIPS:,} "
            "iterations can be planned; is a bound wrong?",
        )
    return iterations


def _check_for(op: Op) -> str | None:
    if len(op.operands) < 3 or len(op.regions) != 1:
        return "must have bounds, a step and a body"
    bounds, inits = op.operands[:3], op.operands[3:]
    if any(not value.type.is_int or value.type.shape for value in bounds):
        return f"counts with {', '.join(str(value.type) for value in bounds)}"
    if len(op.results) != len(inits):
        return f"carries {len(inits)} values, but has {len(op.results)} results"
    args = op.regions[0].entry.args[1:]
    for init, arg, result in zip(inits, args, op.results, strict=True):
        if not alike(init.type, arg.type) or not alike(init.type, result.type):
            return f"carries {init.type} as {arg.type}"
    return yields(op.regions[0], [arg.type for arg in args])


@DIALECT.op("scf.for", operands=(3, MANY), results=None, check=_check_for)
def _for(run: Evaluator, op: Op) -> None:
    iterations = iterations_of(run, op)
    inits = [run.get(value) for value in op.operands[3:]]
    if iterations.count == 0:
        results = inits
    elif op in run.unrolled:
        results = run_parts(run, op, iterations, inits)
    else:
        results = run_rolled(run, op, iterations, inits)
    for result, held in zip(op.results, results, strict=True):
        run.set(result, held)


def _check_if(op: Op) -> str | None:
    condition = op.operands[0].type if len(op.operands) == 1 else None
    if condition is None or not condition.is_bool or condition.shape:
        return "must have one condition of type i1"
    types = [value.type for value in op.results]
    if types and len(op.regions) != 2:
        return f"has {len(types)} results but no else"
    for region in op.regions:
        problem = yields(region, types)
        if problem is not None:
            return problem
    return None


@DIALECT.op("scf.if", operands=1, results=None, check=_check_if)
def _if(run: Evaluator, op: Op) -> None:
    condition = run.get(op.operands[0])
    if isinstance(condition, Predicate) and not condition.is_uniform:
        chosen = choose_both_ways(run, op, condition)
        if chosen is not None:
            for result, held in zip(op.results, chosen, strict=True):
                run.set(result, held)
            return
    taken = 0 if run.decide(op, op.operands[0]) else 1
    if taken < len(op.regions):
        results = run.run_region(op.regions[taken])
        for result, held in zip(op.results, results, strict=True):
            run.set(result, held)


def choose_both_ways(run: Evaluator, op: Op, condition: Predicate) -> list[Held] | None:
    """Evaluate both regions and select, if they only compute integers; else return None.

    So a bound or an offset that is chosen per program or per iteration needs no group of its own.
    """
    if len(op.regions) < 2 or not op.results:
        return None
    try:
        with run.attempt() as attempt:
            sides = [run.run_region(region) for region in op.regions]
        if attempt.commands:
            return None
        return [_choose(condition, a, b) for a, b in zip(*sides, strict=True)]
    except (SplitPrograms, UnrollLoops, NotSeparableError, UnsupportedOpError):
        return None


def _choose(condition: Predicate, a: Held, b: Held) -> Held:
    if a is b:
        return a
    if isinstance(a, Splat) and isinstance(b, Splat) and a == b:
        return a
    if not is_known(a) or not is_known(b) or not same_frame(a, b):  # type: ignore[arg-type]
        raise NotSeparableError
    if getattr(a, "gather", None) is not getattr(b, "gather", None):
        raise NotSeparableError
    parts = tuple(
        integers.select(condition, x, y)
        for x, y in zip(leaves(a), leaves(b), strict=True)  # type: ignore[arg-type]
    )
    return with_leaves(a, parts)  # type: ignore[arg-type]


def _check_while(op: Op) -> str | None:
    before, after = op.regions
    inits = [value.type for value in op.operands]
    if not are_alike([arg.type for arg in before.entry.args], inits):
        return f"carries {len(inits)} values, but its condition takes others"
    last = before.entry.ops[-1] if before.entry.ops else None
    if last is None or last.name != "scf.condition" or not last.operands:
        return "must end its first region with scf.condition"
    if not last.operands[0].type.is_bool or last.operands[0].type.shape:
        return f"has a condition of type {last.operands[0].type}"
    handed = [value.type for value in last.operands[1:]]
    for taken in (op.results, after.entry.args):
        if not are_alike([value.type for value in taken], handed):
            return f"passes on {len(handed)} values that its results or its body do not take"
    return yields(after, inits)


@DIALECT.op("scf.while", operands=(0, MANY), results=None, check=_check_while)
def _while(run: Evaluator, op: Op) -> None:
    before, after = op.regions
    held = [run.get(value) for value in op.operands]
    for _ in range(_MAX_ITERATIONS):
        last = run.run_block(before.entry, held)
        if last.name != "scf.condition":
            raise run.unsupported(op, "it has no condition")
        going = run.decide(last, last.operands[0])
        held = [run.get(value) for value in last.operands[1:]]
        if not going:
            break
        held = run.run_region(after, held)
    else:
        raise run.unsupported(op, f"it runs more than {_MAX_ITERATIONS} times")
    for result, value in zip(op.results, held, strict=True):
        run.set(result, value)


@DIALECT.op("tt.call")
def _call(run: Evaluator, op: Op) -> None:
    for result, held in zip(op.results, run.call(op), strict=True):
        run.set(result, held)
