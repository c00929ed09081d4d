"""How tiles lie in threads: what their widest loads say."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext
from kernbench.kernel_ir import parse_module, reduced_bits
from kernbench.kernel_ir.analysis.layouts import vectors_of_reductions


@triton.jit
def sums(x, y, out, N: tl.constexpr, BLOCK: tl.constexpr):
    rows, at = tl.arange(0, 16)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((16, BLOCK), tl.float32)
    for start in range(0, N, BLOCK):
        total += tl.load(x + rows * N + start + at)
    square = tl.load(y + rows * 16 + tl.arange(0, 16)[None, :])
    product = tl.dot(square, square)
    tl.store(out + tl.arange(0, 16), tl.sum(total, 1) + tl.sum(product, 1))


@pytest.mark.parametrize(("dtype", "vector"), [("float32", 4), ("float16", 8)])
def test_a_reduction_knows_the_loads_that_its_tile_is_made_of(dtype: str, vector: int) -> None:
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        x, y = torch.empty(4096, dtype=dtype), torch.empty(256, dtype="float16")
        compiled = sums[(1,)](x, y, torch.empty(16), 256, 64)
        module = parse_module(compiled.asm["ttir"])
    # What a product left lies otherwise.
    assert sorted(vectors_of_reductions(module.kernel.body).values()) == [0, vector]


# A tile of 8,192 elements in 256 threads: 32 each, of which 4 or 8 in a row.
@pytest.mark.parametrize("vector", [1, 4, 8])
def test_all_bits_of_a_row_are_somewhere(vector: int) -> None:
    assert reduced_bits((8192,), 0, vector, 32, 8) == (5, 5, 3)
    assert sum(reduced_bits((64, 128), 1, vector, 32, 8)) == 7
    # Fewer elements than threads: none has two.
    assert reduced_bits((16,), 0, vector, 32, 8) == (0, 4, 0)
