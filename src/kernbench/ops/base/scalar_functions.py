"""Functions of single elements, which the elementwise and GEMM kernels take as arguments."""

from __future__ import annotations

import triton
import triton.language as tl

SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)
GELU_CUBIC = tl.constexpr(0.044715)


@triton.jit
def identity(x):
    return x


@triton.jit
def add(x, y):
    return x + y


@triton.jit
def add_scaled(x, y, alpha):
    return x + y * alpha


@triton.jit
def sub(x, y):
    return x - y


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def div(x, y):
    return x / y


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y)


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x, y)


@triton.jit
def neg(x):
    return -x


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def sqrt(x):
    return tl.sqrt(x)


@triton.jit
def relu(x):
    return tl.maximum(x, 0)


@triton.jit
def relu_squared(x):
    return relu(x) * relu(x)


@triton.jit
def relu_backward(grad, x):
    return tl.where(x > 0, grad, 0)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_mul(x, y):
    return silu(x) * y


@triton.jit
def add_relu(x, y):
    return relu(x + y)


@triton.jit
def add_silu(x, y):
    return silu(x + y)


@triton.jit
def add_gelu(x, y):
    return gelu(x + y)


@triton.jit
def add_gelu_backward(grad, x, y):
    return gelu_backward(grad, x + y)


@triton.jit
def add_3(x, y, z):
    return x + y + z


@triton.jit
def gelu(x):
    """GELU's tanh form. ``(1 + tanh(u)) / 2`` is ``sigmoid(2 * u)``, which needs no libdevice."""
    return x * tl.sigmoid(2 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x))


@triton.jit
def gelu_backward(grad, x):
    half = tl.sigmoid(2 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x))
    slope = 2 * SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x)
    return grad * (half + x * half * (1 - half) * slope)
