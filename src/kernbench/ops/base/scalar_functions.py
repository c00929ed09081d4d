"""Functions of single elements, which the elementwise and GEMM kernels take as arguments."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

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


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def square(x):
    return x * x


@triton.jit
def cube(x):
    return x * x * x


@triton.jit
def reciprocal(x):
    return 1.0 / x


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def sigmoid(x):
    return tl.sigmoid(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def pow(x, y):
    return libdevice.pow(x, y)


@triton.jit
def integer_pow(x, y, bits):
    """``x ** y`` by squaring; what a negative power leaves of an integer is 0 but for 1 and -1."""
    power, result, rest = x, x * 0 + 1, y
    for _ in range(bits):
        result = tl.where((rest & 1) != 0, result * power, result)
        power = power * power
        rest = rest >> 1
    sign = tl.where((y & 1) != 0, x, x * x)
    return tl.where(y < 0, tl.where(x * x == 1, sign, 0), result)


# Of reductions: functions of an element, or of a sum, and of a number that is the same for all.


@triton.jit
def first_of(x, number):
    return x


@triton.jit
def share_of(total, number):
    return total / number


@triton.jit
def is_not_zero(x, number):
    return (x != 0).to(x.dtype)


@triton.jit
def magnitude(x, number):
    return tl.abs(x)


@triton.jit
def squared(x, number):
    return x * x


@triton.jit
def root(total, number):
    return tl.sqrt(total)


@triton.jit
def magnitude_power(x, number):
    return libdevice.pow(tl.abs(x), number.to(x.dtype))


@triton.jit
def root_of(total, number):
    return libdevice.pow(total, (1.0 / number).to(total.dtype))
