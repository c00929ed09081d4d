"""Operations element by element, with broadcasting, on any strides.

Two kernels serve them all: one for operands that are runs of consecutive elements, one for up to
four dims with a stride each. What they compute is a function that they are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kernbench.dtypes import DType, bool_
from kernbench.errors import UsageError
from kernbench.ops.base import scalar_functions as fn
from kernbench.ops.base.kernel import Memo, index_type, kernel, new_result, normal_dim, prepare
from kernbench.ops.base.layout import Walk, broadcast_shape, broadcast_strides, build_walk
from kernbench.ops.base.promotion import (
    as_number,
    compute_dtype,
    float_result,
    is_number,
    is_tensor,
    require_float,
    result_dtype,
)
from kernbench.runtime_api import Tensor

Operand = Tensor | float | int | bool

_PREPARED = Memo()
"""Prepared launches by function, dtypes and layouts, where all operands are tensors."""

_ABSENT = (None, None, None)


def _tensors(operands: Sequence[Operand]) -> list[Tensor]:
    return [operand for operand in operands if is_tensor(operand)]


@triton.jit
def _read(operand, offsets, mask, COMPUTE: tl.constexpr):
    """Load the elements of a tensor at ``offsets``, or pass a number through."""
    if operand.dtype.is_ptr():
        return tl.load(operand + offsets, mask=mask).to(COMPUTE)
    else:
        return operand.to(COMPUTE)


@triton.jit
def _apply(a, b, c, a_at, b_at, c_at, mask, FUNCTION: tl.constexpr, COMPUTE: tl.constexpr):
    x = _read(a, a_at, mask, COMPUTE)
    # Triton compiles what follows a return too, so each arity is a branch of its own.
    if b is None:
        return FUNCTION(x)
    elif c is None:
        return FUNCTION(x, _read(b, b_at, mask, COMPUTE))
    else:
        return FUNCTION(x, _read(b, b_at, mask, COMPUTE), _read(c, c_at, mask, COMPUTE))


@kernel
def elementwise_flat(
    out_ptr, a, b, c, n, FUNCTION: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr,
    INDEX: tl.constexpr = tl.int32,
):  # fmt: skip
    """``out[i] = FUNCTION(a[i], b[i], c[i])``; operands are consecutive, or numbers, or None."""
    at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    result = _apply(a, b, c, at, at, at, mask, FUNCTION, COMPUTE)
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=mask)


@kernel
def elementwise_strided(
    out_ptr, a, b, c, D1, M, N,
    out_0, out_1, out_2, out_3, a_0, a_1, a_2, a_3,
    b_0, b_1, b_2, b_3, c_0, c_1, c_2, c_3, INDEX: tl.constexpr,
    FUNCTION: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same over ``[D0, D1, M, N]`` with strides: a program per (D0, D1) and tile of M x N."""
    d0 = tl.program_id(2).to(INDEX) // D1
    d1 = tl.program_id(2).to(INDEX) % D1
    m = (tl.program_id(1).to(INDEX) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = (tl.program_id(0).to(INDEX) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (m < M) & (n < N)
    a_at = d0 * a_0 + d1 * a_1 + m * a_2 + n * a_3
    b_at = d0 * b_0 + d1 * b_1 + m * b_2 + n * b_3
    c_at = d0 * c_0 + d1 * c_1 + m * c_2 + n * c_3
    result = _apply(a, b, c, a_at, b_at, c_at, mask, FUNCTION, COMPUTE)
    out_at = d0 * out_0 + d1 * out_1 + m * out_2 + n * out_3
    tl.store(out_ptr + out_at, result.to(out_ptr.dtype.element_ty), mask=mask)


def run_elementwise(
    name: str, function: Any, operands: Sequence[Operand], out: Tensor, compute: DType
) -> Tensor:
    """Write ``function(*operands)`` to ``out``, element by element, and return ``out``.

    Raises:
        UsageError: The operands do not broadcast to the shape of ``out``.
    """
    tensors = _tensors(operands)
    key = None
    if len(tensors) == len(operands):
        layouts = tuple([(t.shape, t.stride(), t.dtype) for t in tensors])
        key = (id(function), compute, out.shape, out.stride(), out.dtype, layouts)
        prepared = _PREPARED.get(key)
        if prepared is not None:
            prepared.launch(name, (out, *tensors, *_ABSENT[len(tensors) :]), out.context)
            return out
    shape = tuple(out.shape)
    if broadcast_shape(shape, *(tuple(t.shape) for t in tensors)) != shape:
        listed = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise UsageError(f"{name} of shapes {listed} does not fit into a result of shape {shape}")
    if math.prod(shape) == 0:
        return out
    walk = build_walk(
        shape,
        tuple(out.stride()),
        *(broadcast_strides(tuple(t.shape), tuple(t.stride()), shape) for t in tensors),
    )
    slots: list[Any] = [as_number(x) if is_number(x) else x for x in operands]
    slots += [None] * (3 - len(slots))
    plan = _plan(walk, slots)
    arguments = (out, *slots)
    constants = {
        "FUNCTION": function,
        "COMPUTE": compute_dtype(compute),
        **plan.blocks,
        "INDEX": index_type(*arguments),
    }
    if key is None:
        # What a number compiles to depends on its value.
        out.context.launch(
            name, plan.kernel, *arguments, *plan.numbers, grid=plan.grid, **constants
        )
    else:
        prepared = prepare(plan.kernel, arguments, plan.numbers, plan.grid, constants)
        _PREPARED.keep(key, prepared)
        prepared.launch(name, arguments, out.context)
    return out


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which of the two kernels runs, and its arguments after the operands."""

    kernel: Any
    numbers: tuple[int, ...]
    grid: tuple[int, ...]
    blocks: dict[str, int]


def _plan(walk: Walk, slots: list[Any]) -> _Plan:
    if walk.is_flat:
        n = math.prod(walk.shape)
        size = 1024 if n <= 1 << 16 else 4096
        return _Plan(elementwise_flat, (n,), (triton.cdiv(n, size),), {"BLOCK": size})
    walk = walk.padded()
    d0, d1, m, n = walk.shape
    block_m, block_n = (1, 1024) if m == 1 else (16, 64)
    out_strides, *strides = walk.strides
    per_slot = [(0,) * 4 if slot is None or is_number(slot) else strides.pop(0) for slot in slots]
    return _Plan(
        elementwise_strided,
        (d1, m, n, *out_strides, *(stride for own in per_slot for stride in own)),
        (triton.cdiv(n, block_n), triton.cdiv(m, block_m), d0 * d1),
        {"BLOCK_M": block_m, "BLOCK_N": block_n},
    )


def _binary(
    name: str, function: Any, a: Operand, b: Operand, dtype: DType, compute: DType,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return run_elementwise(
        name, function, (a, b), result_of((a, b), dtype) if out is None else out, compute
    )


def result_of(operands: Sequence[Operand], dtype: DType) -> Tensor:
    tensors = _tensors(operands)
    shape = broadcast_shape(*(tuple(tensor.shape) for tensor in tensors))
    beside = next((t for t in tensors if tuple(t.shape) == shape), tensors[0])
    return new_result(shape, dtype, beside)


def _arithmetic(name: str, function: Any, a: Operand, b: Operand, out: Tensor | None) -> Tensor:
    dtype = result_dtype(a, b)
    return _binary(name, function, a, b, dtype, dtype, out)


def _comparison(name: str, function: Any, a: Operand, b: Operand) -> Tensor:
    return _binary(name, function, a, b, bool_, result_dtype(a, b))


def add(a: Operand, b: Operand, out: Tensor | None = None) -> Tensor:
    """Return ``a + b``."""
    return _arithmetic("add", fn.add, a, b, out)


def sub(a: Operand, b: Operand, out: Tensor | None = None) -> Tensor:
    """Return ``a - b``."""
    return _arithmetic("sub", fn.sub, a, b, out)


def mul(a: Operand, b: Operand, out: Tensor | None = None) -> Tensor:
    """Return ``a * b``."""
    return _arithmetic("mul", fn.mul, a, b, out)


def div(a: Operand, b: Operand, out: Tensor | None = None) -> Tensor:
    """Return ``a / b``; of integers it is float32."""
    dtype = float_result(a, b)
    return _binary("div", fn.div, a, b, dtype, dtype, out)


def maximum(a: Operand, b: Operand) -> Tensor:
    """Return the elementwise maximum."""
    return _arithmetic("maximum", fn.maximum, a, b, None)


def minimum(a: Operand, b: Operand) -> Tensor:
    """Return the elementwise minimum."""
    return _arithmetic("minimum", fn.minimum, a, b, None)


def eq(a: Operand, b: Operand) -> Tensor:
    """Return where ``a == b``, as bool."""
    return _comparison("eq", fn.eq, a, b)


def ne(a: Operand, b: Operand) -> Tensor:
    """Return where ``a != b``, as bool."""
    return _comparison("ne", fn.ne, a, b)


def lt(a: Operand, b: Operand) -> Tensor:
    """Return where ``a < b``, as bool."""
    return _comparison("lt", fn.lt, a, b)


def le(a: Operand, b: Operand) -> Tensor:
    """Return where ``a <= b``, as bool."""
    return _comparison("le", fn.le, a, b)


def gt(a: Operand, b: Operand) -> Tensor:
    """Return where ``a > b``, as bool."""
    return _comparison("gt", fn.gt, a, b)


def ge(a: Operand, b: Operand) -> Tensor:
    """Return where ``a >= b``, as bool."""
    return _comparison("ge", fn.ge, a, b)


def add_(target: Tensor, other: Operand, alpha: float = 1.0) -> Tensor:
    """Add ``alpha * other`` to ``target`` in place; returns ``target``."""
    _require_holds("add_", target, other)
    if alpha == 1.0:
        return run_elementwise("add_", fn.add, (target, other), target, target.dtype)
    return run_elementwise("add_", fn.add_scaled, (target, other, alpha), target, target.dtype)


def mul_(target: Tensor, other: Operand) -> Tensor:
    """Multiply ``target`` by ``other`` in place; returns ``target``."""
    _require_holds("mul_", target, other)
    return run_elementwise("mul_", fn.mul, (target, other), target, target.dtype)


def _require_holds(name: str, target: Tensor, other: Operand) -> None:
    if not target.dtype.is_floating_point and result_dtype(target, other).is_floating_point:
        raise UsageError(
            f"{name} of a floating-point value to a tensor of {target.dtype} would lose its "
            "fraction; convert the tensor first"
        )


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """Return ``a`` where ``condition`` holds, else ``b``."""
    dtype = result_dtype(a, b)
    out = result_of((condition, a, b), dtype)
    return run_elementwise("where", fn.where, (condition, a, b), out, dtype)


def _unary(name: str, function: Any, x: Tensor) -> Tensor:
    return run_elementwise(name, function, (x,), result_of((x,), x.dtype), x.dtype)


def _float_unary(name: str, function: Any, x: Tensor) -> Tensor:
    require_float(name, x)
    return _unary(name, function, x)


def fraction(name: str, function: Any, x: Tensor) -> Tensor:
    dtype = float_result(x)
    return run_elementwise(name, function, (x,), result_of((x,), dtype), dtype)


def neg(x: Tensor) -> Tensor:
    """Return ``-x``."""
    return _unary("neg", fn.neg, x)


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element; of integers it is float32."""
    return fraction("exp", fn.exp, x)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of each element; of integers it is float32."""
    return fraction("log", fn.log, x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of each element; of integers it is float32."""
    return fraction("sqrt", fn.sqrt, x)


def relu(x: Tensor) -> Tensor:
    """Return ``max(x, 0)``."""
    return _unary("relu", fn.relu, x)


def silu(x: Tensor) -> Tensor:
    """Return ``x * sigmoid(x)``."""
    return _float_unary("silu", fn.silu, x)


def gelu(x: Tensor) -> Tensor:
    """Return GELU in its tanh form, ``torch.nn.functional.gelu(x, approximate="tanh")``."""
    return _float_unary("gelu", fn.gelu, x)


def gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of ``gelu`` at its *input* ``x``, times ``grad``."""
    require_float("gelu_backward", x)
    dtype = result_dtype(grad, x)
    return _binary("gelu_backward", fn.gelu_backward, grad, x, dtype, dtype)


def relu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of ``relu`` at its input ``x``, times ``grad``."""
    dtype = result_dtype(grad, x)
    return _binary("relu_backward", fn.relu_backward, grad, x, dtype, dtype)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Return a contiguous copy of ``x`` in another dtype."""
    out = result_of((x,), dtype)
    copy_strided(x, out)
    return out


def copy_strided(source: Tensor, target: Tensor) -> None:
    """Copy ``source`` to ``target``, broadcasting and converting."""
    run_elementwise("copy", fn.identity, (source,), target, source.dtype)


def fill(target: Tensor, value: float | int | bool) -> Tensor:
    """Write ``value`` to every element; returns ``target``."""
    return run_elementwise("fill", fn.identity, (value,), target, target.dtype)


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the tensors concatenated along ``dim``.

    Raises:
        UsageError: There are none, or they differ in another size, in dims or in dtype.
    """
    if not tensors:
        raise UsageError("concat needs at least one tensor")
    first = tensors[0]
    shape = list(first.shape)
    dim = normal_dim("concat", first, dim)
    for tensor in tensors:
        sizes = tuple(tensor.shape)
        if tensor.dtype != first.dtype or (
            sizes[:dim] + sizes[dim + 1 :] != tuple(shape[:dim] + shape[dim + 1 :])
        ):
            raise UsageError(
                f"concat along dim {dim} needs equal dtypes and other sizes, but got "
                f"{first.dtype} {tuple(first.shape)} and {tensor.dtype} {sizes}"
            )
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    out = new_result(tuple(shape), first.dtype, first)
    start = 0
    for tensor in tensors:
        end = start + tensor.shape[dim]
        copy_strided(tensor, out.narrow(dim, start, end - start))
        start = end
    return out
