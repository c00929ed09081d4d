"""One small kernel per family of TTIR operations, with what numpy makes of the same arrays.

Each case names the operations that its TTIR has. ``x`` and ``y`` are float32, ``i`` and ``j``
int32, ``u`` uint32, all of N elements; ``out`` has the type of the expected array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice

Array = np.ndarray[Any, np.dtype[Any]]
N = 64
RNG = np.random.default_rng(3)
X = RNG.uniform(0.1, 4, N).astype(np.float32)
Y = RNG.uniform(0.5, 3, N).astype(np.float32) * np.where(np.arange(N) % 3 == 0, -1, 1)
Y = Y.astype(np.float32)
I = RNG.integers(-1000, 1000, N).astype(np.int32)  # noqa: E741 - beside J
J = RNG.integers(1, 30, N).astype(np.int32)
U = RNG.integers(2**31, 2**32, N, dtype=np.uint64).astype(np.uint32)
ARRAYS: dict[str, Array] = {"x": X, "y": Y, "i": I, "j": J, "u": U}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel, the operations that it is here for, and the result that it must have."""

    kernel: Any
    ops: str
    arguments: str
    """Names of ``ARRAYS``, in the kernel's order; ``out`` follows."""
    expected: Callable[[], Any]
    grid: int = 1
    tolerance: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    """What ``triton.language`` must have; it differs from release to release."""


CASES: dict[str, Case] = {}


def case(
    ops: str, arguments: str, expected: Callable[[], Any], **more: Any
) -> Callable[[Any], Any]:
    def keep(kernel: Any) -> Any:
        CASES[kernel.__name__] = Case(
            kernel=kernel, ops=ops, arguments=arguments, expected=expected, **more
        )
        return kernel

    return keep


def per_row(*rows: Any) -> Array:
    return np.stack([np.broadcast_to(np.asarray(row), (N,)) for row in rows])


def _c_rest(a: Array, b: Array) -> Array:
    return np.fmod(a, b)


@case(
    "arith.addi arith.subi arith.muli arith.divsi arith.remsi arith.minsi arith.maxsi arith.andi "
    "arith.xori arith.ori arith.shli arith.shrsi arith.cmpi arith.select arith.constant "
    "arith.extsi arith.trunci tt.make_range tt.addptr tt.splat tt.load tt.store tt.func tt.return",
    "i j",
    lambda: per_row(
        I + J, I - J, I * J, np.trunc(I / J), _c_rest(I, J), np.minimum(I, J), np.maximum(I, J),
        I & J, I ^ J, I | J, I << 3, I >> 2, np.where(I > J, I, J * 2),
        (I.astype(np.int64) * 10**7) >> 8, I.astype(np.int8),
    ).astype(np.int64),
)  # fmt: skip
@triton.jit
def signed(i, j, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(i + at), tl.load(j + at)
    tl.store(out + at, a + b)
    tl.store(out + N + at, a - b)
    tl.store(out + 2 * N + at, a * b)
    tl.store(out + 3 * N + at, a // b)
    tl.store(out + 4 * N + at, a % b)
    tl.store(out + 5 * N + at, tl.minimum(a, b))
    tl.store(out + 6 * N + at, tl.maximum(a, b))
    tl.store(out + 7 * N + at, a & b)
    tl.store(out + 8 * N + at, a ^ b)
    tl.store(out + 9 * N + at, a | b)
    tl.store(out + 10 * N + at, a << 3)
    tl.store(out + 11 * N + at, a >> 2)
    tl.store(out + 12 * N + at, tl.where(a > b, a, b * 2))
    tl.store(out + 13 * N + at, (a.to(tl.int64) * 10000000) >> 8)
    tl.store(out + 14 * N + at, a.to(tl.int8))


@case(
    "arith.divui arith.remui arith.shrui arith.minui arith.maxui arith.extui arith.uitofp "
    "arith.fptoui tt.mulhiui",
    "u j",
    lambda: per_row(
        U // 7, U % 7, U >> 5, np.minimum(U, U[::-1]), np.maximum(U, U[::-1]),
        U.astype(np.uint64) * 2, U.astype(np.float32).astype(np.uint64),
        (J + 0.75).astype(np.uint32), (U.astype(object) * U // 2**32).astype(np.uint64),
    ).astype(np.uint64),
)  # fmt: skip
@triton.jit
def unsigned(u, j, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(u + at), tl.load(u + N - 1 - at)
    seven = tl.full((N,), 7, tl.uint32)
    tl.store(out + at, a // seven)
    tl.store(out + N + at, a % seven)
    tl.store(out + 2 * N + at, a >> 5)
    tl.store(out + 3 * N + at, tl.minimum(a, b))
    tl.store(out + 4 * N + at, tl.maximum(a, b))
    tl.store(out + 5 * N + at, a.to(tl.uint64) * 2)
    tl.store(out + 6 * N + at, a.to(tl.float32).to(tl.uint64))
    tl.store(out + 7 * N + at, (tl.load(j + at) + 0.75).to(tl.uint32))
    tl.store(out + 8 * N + at, tl.umulhi(a, a))


@case(
    "arith.addf arith.subf arith.mulf arith.divf arith.remf arith.negf arith.cmpf arith.sitofp "
    "arith.fptosi arith.extf arith.truncf tt.precise_divf tt.precise_sqrt tt.clampf tt.bitcast",
    "x y j",
    lambda: per_row(
        X + Y, X - Y, X * Y, X / Y, np.fmod(X, Y), -X * 2, np.where(X < Y, X, 0), J * 0.5,
        (Y * 10).astype(np.int32), X.astype(np.float16).astype(np.float32) * 2, X / Y, np.sqrt(X),
        np.clip(Y, -1, 2), (X.view(np.int32) & 0x7FFFFF).view(np.float32),
    ).astype(np.float32),
    tolerance=1e-6,
)  # fmt: skip
@triton.jit
def floating(x, y, j, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a + b)
    tl.store(out + N + at, a - b)
    tl.store(out + 2 * N + at, a * b)
    tl.store(out + 3 * N + at, a / b)
    tl.store(out + 4 * N + at, a % b)
    tl.store(out + 5 * N + at, -a * 2)
    tl.store(out + 6 * N + at, tl.where(a < b, a, 0.0))
    tl.store(out + 7 * N + at, tl.load(j + at) * 0.5)
    tl.store(out + 8 * N + at, (b * 10).to(tl.int32))
    tl.store(out + 9 * N + at, a.to(tl.float16).to(tl.float32) * 2)
    tl.store(out + 10 * N + at, tl.div_rn(a, b))
    tl.store(out + 11 * N + at, tl.sqrt_rn(a))
    tl.store(out + 12 * N + at, tl.clamp(b, -1.0, 2.0))
    tl.store(
        out + 13 * N + at, (a.to(tl.int32, bitcast=True) & 0x7FFFFF).to(tl.float32, bitcast=True)
    )


WITH_NAN = np.where(np.arange(N) % 5 == 0, np.nan, X).astype(np.float32)
ARRAYS["nan"] = WITH_NAN


@case(
    "arith.maximumf arith.minimumf arith.maxnumf arith.minnumf",
    "nan y",
    lambda: per_row(
        np.maximum(WITH_NAN, Y), np.minimum(WITH_NAN, Y), np.fmax(WITH_NAN, Y), np.fmin(WITH_NAN, Y)
    ),
)
@triton.jit
def extremes(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + N + at, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 2 * N + at, tl.maximum(a, b))
    tl.store(out + 3 * N + at, tl.minimum(a, b))


@case(
    "math.exp math.exp2 math.log math.log2 math.sqrt math.rsqrt math.absf math.fma math.ceil "
    "math.floor math.erf math.sin math.cos",
    "x y",
    lambda: per_row(
        np.exp(X), np.exp2(X), np.log(X), np.log2(X), np.sqrt(X), 1 / np.sqrt(X), np.abs(Y),
        X * Y + X, np.ceil(Y), np.floor(Y), [math.erf(v) for v in Y], np.sin(Y), np.cos(Y),
    ).astype(np.float32),
    tolerance=2e-6,
)  # fmt: skip
@triton.jit
def functions(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.exp(a))
    tl.store(out + N + at, tl.exp2(a))
    tl.store(out + 2 * N + at, tl.log(a))
    tl.store(out + 3 * N + at, tl.log2(a))
    tl.store(out + 4 * N + at, tl.sqrt(a))
    tl.store(out + 5 * N + at, tl.rsqrt(a))
    tl.store(out + 6 * N + at, tl.abs(b))
    tl.store(out + 7 * N + at, tl.fma(a, b, a))
    tl.store(out + 8 * N + at, tl.ceil(b))
    tl.store(out + 9 * N + at, tl.floor(b))
    tl.store(out + 10 * N + at, tl.erf(b))
    tl.store(out + 11 * N + at, tl.sin(b))
    tl.store(out + 12 * N + at, tl.cos(b))


@case("math.absi", "i", lambda: np.abs(I))
@triton.jit
def absolute(i, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.abs(tl.load(i + at)))


@case(
    "tt.extern_elementwise",
    "x y",
    lambda: per_row(np.tanh(X), np.hypot(X, Y)).astype(np.float32),
    tolerance=2e-6,
)
@triton.jit
def from_a_library(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, libdevice.tanh(a))
    tl.store(out + N + at, libdevice.hypot(a, b))


@case(
    "tt.elementwise_inline_asm",
    "x y",
    lambda: per_row(X.astype(np.float64) * Y + X, 1 / np.abs(X), np.exp2(Y)).astype(np.float32),
    tolerance=1e-6,
)
@triton.jit
def instructions(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    fused = tl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, a], tl.float32, is_pure=True, pack=1
    )
    inverse = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f, f", [tl.abs(a)], tl.float32, is_pure=True, pack=1
    )
    power = tl.inline_asm_elementwise(
        "ex2.approx.f32 $0, $1;", "=f,f", [b], tl.float32, is_pure=True, pack=1
    )
    tl.store(out + at, fused)
    tl.store(out + N + at, inverse)
    tl.store(out + 2 * N + at, power)


@case(
    "tt.reshape tt.trans tt.expand_dims tt.broadcast tt.join tt.split tt.cat tt.reduce "
    "tt.reduce.return tt.scan tt.scan.return tt.gather tt.histogram",
    "i j",
    lambda: per_row(
        I.reshape(4, 16).T.reshape(-1), np.stack([I, J], 1).sum(1) * 2, I + J,
        np.sort(np.concatenate([I[: N // 2], J[: N // 2]])),
        I.reshape(8, 8).sum(0).repeat(8), np.cumsum(I), I[::-1], np.histogram(J, N, (0, N))[0],
    ).astype(np.int32),
)  # fmt: skip
@triton.jit
def shapes(i, j, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(i + at), tl.load(j + at)
    tl.store(out + at, tl.reshape(tl.trans(tl.reshape(a, (4, 16))), (N,)))
    both = tl.join(a, b)
    first, second = tl.split(both * 2)
    tl.store(out + N + at, first + second)
    first, second = tl.split(both)
    tl.store(out + 2 * N + at, first + second)
    half = tl.arange(0, N // 2)
    # The order of a cat that may reorder is nobody's: it is sorted.
    mixed = tl.cat(tl.load(i + half), tl.load(j + half), can_reorder=True)
    tl.store(out + 3 * N + at, tl.sort(mixed))
    sums = tl.sum(tl.reshape(a, (8, 8)), axis=0)
    eight = tl.arange(0, 8)
    tl.store(
        out + 4 * N + eight[:, None] * 8 + eight[None, :], tl.broadcast_to(sums[:, None], (8, 8))
    )
    tl.store(out + 5 * N + at, tl.cumsum(a, axis=0))
    tl.store(out + 6 * N + at, tl.gather(a, N - 1 - at, axis=0))
    tl.store(out + 7 * N + at, tl.histogram(b, N))


@triton.jit
def _smaller_and_larger(a, b):
    if a > b:
        return b, a
    else:
        return a, b


@case(
    "tt.map_elementwise tt.map_elementwise.return cf.cond_br cf.br",
    "i j",
    lambda: per_row(np.minimum(I, J), np.maximum(I, J)),
    needs="map_elementwise",
)
@triton.jit
def mapped(i, j, out, N: tl.constexpr):
    at = tl.arange(0, N)
    low, high = tl.map_elementwise(_smaller_and_larger, tl.load(i + at), tl.load(j + at))
    tl.store(out + at, low)
    tl.store(out + N + at, high)


@triton.jit(noinline=True)
def _collatz(value):
    steps = 0
    while value != 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = value * 3 + 1
        steps += 1
    return steps


def _collatz_steps(value: int) -> int:
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else value * 3 + 1
        steps += 1
    return steps


@case(
    "scf.for scf.if scf.while scf.condition scf.yield cf.cond_br tt.call tt.get_program_id "
    "tt.get_num_programs arith.remsi arith.divsi",
    "j",
    lambda: np.array(
        [0 if v % 7 == 0 else _collatz_steps(int(v)) + N * (int(v) // 2) for v in J], np.int32
    ),
    grid=N,
)
@triton.jit
def control(j, out, N: tl.constexpr):
    program = tl.program_id(0)
    value = tl.load(j + program)
    tl.store(out + program, 0)
    if value % 7 == 0:
        return
    total = _collatz(value)
    for _ in range(value // 2):
        total += tl.num_programs(0)
    tl.store(out + program, total)


@case(
    "tt.atomic_cas tt.atomic_rmw ttg.barrier tt.ptr_to_int tt.int_to_ptr tt.unsplat",
    "j",
    lambda: np.concatenate([np.array([J.sum(), N]), J * 2, np.zeros(N - 2)]).astype(np.int32),
    grid=N,
)
@triton.jit
def atomics(j, out, N: tl.constexpr):
    program = tl.program_id(0)
    value = tl.load(j + program)
    while tl.atomic_cas(out + 2 * N, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + value)
    tl.debug_barrier()
    tl.atomic_xchg(out + 2 * N, 0)
    tl.atomic_add(out + 1, 1)
    address = (out + 2 + program).to(tl.int64, bitcast=True)
    one = tl.full((1,), 2, tl.int32) * value
    tl.store(address.to(tl.pointer_type(tl.int32), bitcast=True), one.item())


@case(
    "tt.atomic_poll tt.atomic_load tt.atomic_store",
    "j",
    lambda: np.array([J[:4].sum(), 4] + [0] * (N - 2), np.int32),
    grid=4,
    needs="atomic_poll",
)
@triton.jit
def signals(j, out, N: tl.constexpr):
    program = tl.program_id(0)
    if program == 0:
        tl.atomic_poll(out + 1, 3)
        tl.atomic_add(out, tl.atomic_load(j))
        tl.atomic_store(out + 1, 4)
    else:
        tl.atomic_add(out, tl.load(j + program))
        tl.atomic_add(out + 1, 1)


A16 = (np.arange(256) % 7 - 3).reshape(16, 16).astype(np.float16)
ARRAYS["a16"] = A16


@case(
    "tt.dot tt.fp_to_fp",
    "a16",
    lambda: A16.astype(np.float32) @ A16.astype(np.float32) + np.clip(A16, -2, 2),
)
@triton.jit
def product(a, out, N: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(a + at)
    small = tl.clamp(tile, -2.0, 2.0).to(tl.float8e4nv).to(tl.float32)
    tl.store(out + at, tl.dot(tile, tile, small))


A8 = (np.arange(32 * 32) % 5 - 2).reshape(32, 32).astype(np.float32)
ARRAYS["a8"] = A8


@case(
    "tt.dot_scaled",
    "a8",
    lambda: (A8 * 4) @ A8.T,
    needs="dot_scaled",
)
@triton.jit
def scaled_product(a, out, N: tl.constexpr):
    m, k = tl.arange(0, 32), tl.arange(0, 32)
    tile = tl.load(a + m[:, None] * 32 + k[None, :]).to(tl.float8e4nv)
    # A scale is the power of two that its byte is the exponent of, biased by 127.
    four = tl.full((32, 1), 129, tl.uint8)
    one = tl.full((32, 1), 127, tl.uint8)
    result = tl.dot_scaled(tile, four, "e4m3", tl.trans(tile), one, "e4m3")
    tl.store(out + m[:, None] * 32 + k[None, :], result)


@case(
    "tt.make_tensor_descriptor tt.descriptor_load tt.descriptor_store",
    "a8",
    lambda: np.pad(A8[8:, 16:], ((0, 0), (0, 16))) * 2,
    needs="make_tensor_descriptor",
)
@triton.jit
def described(a, out, N: tl.constexpr):
    source = tl.make_tensor_descriptor(a, shape=[32, 32], strides=[32, 1], block_shape=[32, 16])
    target = tl.make_tensor_descriptor(out, shape=[24, 32], strides=[32, 1], block_shape=[32, 16])
    target.store([0, 0], source.load([8, 16]) * 2)
    target.store([0, 16], source.load([8, 32]))  # outside: zeros


@case(
    "tt.descriptor_reduce",
    "a8",
    lambda: A8 * 2,
    grid=2,
    needs="make_tensor_descriptor",
)
@triton.jit
def added_by_descriptor(a, out, N: tl.constexpr):
    source = tl.make_tensor_descriptor(a, shape=[32, 32], strides=[32, 1], block_shape=[32, 32])
    target = tl.make_tensor_descriptor(out, shape=[32, 32], strides=[32, 1], block_shape=[32, 32])
    target.atomic_add([0, 0], source.load([0, 0]))


ROWS = (np.arange(32) * 7 % 32).astype(np.int32)
ARRAYS["rows"] = ROWS


@case(
    "tt.descriptor_gather tt.descriptor_scatter",
    "a8 rows",
    lambda: A8[ROWS][np.argsort(ROWS[::-1])],
    needs="make_tensor_descriptor",
)
@triton.jit
def picked_by_descriptor(a, rows, out, N: tl.constexpr):
    source = tl.make_tensor_descriptor(a, shape=[32, 32], strides=[32, 1], block_shape=[1, 32])
    target = tl.make_tensor_descriptor(out, shape=[32, 32], strides=[32, 1], block_shape=[1, 32])
    at = tl.arange(0, 32)
    target.scatter(source.gather(tl.load(rows + at), 0), tl.load(rows + 31 - at), 0)


@case(
    "tt.print tt.assert llvm.intr.assume",
    "i",
    lambda: I + 1,
    options={"debug": True},
)
@triton.jit
def hints(i, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(i + at)
    tl.assume(tl.num_programs(0) > 0)
    tl.device_assert(a < 2000, "too large")
    tl.device_print("sum", tl.sum(a, axis=0))
    tl.store(out + at, a + 1)


@case("scf.for", "i", lambda: I * 4)
@triton.jit
def specialized(i, out, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros((N,), dtype=tl.int32)
    for _ in tl.range(4, warp_specialize=True, num_stages=2):
        total += tl.load(i + at)
    tl.store(out + at, total)
