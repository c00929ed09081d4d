"""Shared memory and registers of a block, against what Triton and ptxas take for GPUs."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext


@triton.jit
def product(a, b, out, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr, ONCE: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, B)
    x_at, y_at = a + m[:, None] * K + k[None, :], b + k[:, None] * N + n[None, :]
    total = tl.zeros((M, N), tl.float32)
    if ONCE:
        total = tl.dot(tl.load(x_at), tl.load(y_at), total)
    else:
        for _ in range(0, K, B):
            total = tl.dot(tl.load(x_at), tl.load(y_at), total)
            x_at += B
            y_at += B * N
    tl.store(out + m[:, None] * N + n[None, :], total)


@triton.jit
def attention(q, k, v, out, length, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m, n, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    rows = tl.load(q + m[:, None] * D + d[None, :])
    total = tl.zeros((M, D), tl.float32)
    most = tl.zeros((M,), tl.float32) - float("inf")
    for at in range(0, length, N):
        scores = tl.dot(rows, tl.load(k + (at + n)[None, :] * D + d[:, None]))
        new = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        total = total * tl.exp2(most - new)[:, None]
        total = tl.dot(p.to(tl.float16), tl.load(v + (at + n)[:, None] * D + d[None, :]), total)
        most = new
    tl.store(out + m[:, None] * D + d[None, :], total)


# M, N, K of the tile, warps, stages; what Triton 3.9 says in `metadata.shared` when it compiles
# these for 9.0 and for 8.0, and the registers that ptxas of CUDA 12.9 reports for 9.0.
PRODUCTS = [
    ((128, 128, 64), 4, 3, 98_304, 65_536, 220),
    ((128, 128, 64), 8, 3, 98_304, 65_536, 122),
    ((128, 256, 64), 8, 3, 147_456, 98_304, 202),
    ((64, 64, 32), 4, 4, 32_768, 24_576, 60),
    ((32, 32, 64), 4, 3, 16_384, 16_384, 54),
    ((16, 64, 64), 1, 3, 20_480, 20_480, 168),
    ((64, 128, 64), 2, 3, 49_152, 49_152, 255),
    ((64, 64, 64), 8, 1, 16_384, 16_384, 54),
]


@pytest.mark.adr("0136-D1")
@pytest.mark.parametrize(("machine", "place"), [("h100-sxm", 0), ("a100-sxm-80g", 1)])
def test_shared_memory_is_tritons(machine: str, place: int) -> None:
    with RuntimeContext(machine=machine, data=False) as torch:
        for (m, n, k), warps, stages, *shared, _ in PRODUCTS:
            a, b = (torch.empty(size, dtype=torch.float16) for size in (m * 4 * k, 4 * k * n))
            compiled = product[(1,)](
                *(a, b, torch.empty(m, n), 4 * k, m, n, k, False),
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            assert compiled.metadata.shared == shared[place], (m, n, k, warps, stages)
        x = torch.empty(256, 128, dtype=torch.float16)
        compiled = attention[(1,)](x, x, x, torch.empty(128, 128), 256, 128, 64, 128, num_stages=3)
        assert compiled.metadata.shared == (131_072, 98_304)[place]


@pytest.mark.adr("0136-D1")
def test_operands_that_are_loaded_once_need_shared_memory_too() -> None:
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        a, out = torch.empty(128 * 512, dtype=torch.float16), torch.empty(128, 128)
        with pytest.raises(triton.runtime.errors.OutOfResources) as refused:
            product[(1,)](a, a, out, 512, 128, 128, 512, True)
        limit = "Required: 262144, Hardware limit: 232448. Reducing block sizes or `num_stages`"
        assert str(refused.value).startswith(f"out of resource: shared memory, {limit} may help.")


def test_registers_are_near_those_of_ptxas() -> None:
    from kernbench.kernel_ir import parse_module, tcm_use

    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        for (m, n, k), warps, stages, *_, registers in PRODUCTS:
            a, b = (torch.empty(size, dtype=torch.float16) for size in (m * 4 * k, 4 * k * n))
            compiled = product[(1,)](
                *(a, b, torch.empty(m, n), 4 * k, m, n, k, False),
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            use = tcm_use(parse_module(compiled.asm["ttir"]), stages).registers
            assert use.per_thread(32 * warps) == pytest.approx(registers, rel=0.3)
