"""Question: what does replaying a kernel cost beside the same work in plain numpy?

Each case runs a real Triton kernel's trace and numpy's expression alternately in one process, with
BLAS on one thread, and prints the ratio of the best CPU times. Goal: the tutorial's float16 GEMM
1.5.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from tutorial_gemm import matmul

from conftest import Goal
from kernbench.dtypes import as_dtype
from kernbench.kernel_ir import evaluate
from kernbench.memory import DeviceMemory
from kernbench.ops import KernelProbe
from kernbench.replay import PointerArg, run_kernel
from kernbench.triton_backend import KernelBinary, activate

RNG = np.random.default_rng(0)
MEMORY = DeviceMemory(0, 1 << 36, has_data=True)


class OnDevice:
    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.dtype = as_dtype(array.dtype)
        self.buffer = MEMORY.allocate(array.nbytes, "tensor")
        self.buffer.bytes[:] = array.reshape(-1).view(np.uint8)

    def data_ptr(self) -> int:
        return self.buffer.address


class Keeping(KernelProbe):
    """A launcher that keeps the trace and the arguments of the last launch."""

    def launch(self, binary: KernelBinary, grid: tuple[int, int, int], args: Any) -> None:
        ints = {index: arg for index, arg in enumerate(args) if isinstance(arg, int)}
        self.kept = evaluate(binary.module, grid, ints, num_warps=4, num_stages=3)
        self.params = [PointerArg(a.buffer) if isinstance(a, OnDevice) else a for a in args]


def compare(name: str, launch: Callable[[], Any], reference: Callable[[], Any]) -> float:
    """Return the replay's time over numpy's, each the best of alternating runs."""
    keeping = Keeping()
    with activate(keeping):
        launch()
    run_kernel(keeping.kept, keeping.params)
    replay, numpy = [], []
    deadline = time.process_time() + 1.5
    while time.process_time() < deadline or len(replay) < 5:
        start = time.process_time()
        run_kernel(keeping.kept, keeping.params)
        middle = time.process_time()
        reference()
        replay.append(middle - start)
        numpy.append(time.process_time() - middle)
    ours, theirs = min(replay) * 1e6, min(numpy) * 1e6
    print(
        f"\n  {name}: replay {ours:.1f} us, numpy {theirs:.1f} us, "
        f"ratio {ours / theirs:.2f}, difference {ours - theirs:.1f} us"
    )
    return ours / theirs


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask) + tl.load(y_ptr + at, mask), mask)


@pytest.mark.parametrize("length", [4096, 1 << 20])
def test_vector_add(length: int) -> None:
    x, y = (RNG.standard_normal(length).astype(np.float32) for _ in range(2))
    args = [OnDevice(array) for array in (x, y, np.zeros_like(x))]
    grid = (triton.cdiv(length, 1024),)
    compare(f"add of {length} f32", lambda: add[grid](*args, length, BLOCK=1024), lambda: x + y)


@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + at, e / tl.sum(e, axis=0), mask=mask)


@pytest.mark.parametrize("shape", [(4096, 1024), (4096, 1000), (64, 1024)])
def test_softmax(shape: tuple[int, int]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    args = [OnDevice(x), OnDevice(np.zeros_like(x))]

    def reference() -> Any:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    compare(
        f"softmax of {shape} f32",
        lambda: softmax[(shape[0],)](*args, shape[1], BLOCK=1024),
        reference,
    )


@pytest.mark.parametrize("shape", [(64, 64, 1024), (1000, 1000, 1000), (1024,) * 3, (2048,) * 3])
def test_tutorial_matmul(shape: tuple[int, int, int], goal: Goal) -> None:
    m, n, k = shape
    a, b = (RNG.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    args = [OnDevice(array) for array in (a, b, np.zeros((m, n), np.float16))]
    tile = min(m, 128)
    grid = (triton.cdiv(m, tile) * triton.cdiv(n, tile),)
    ratio = compare(
        f"float16 GEMM of {shape}",
        lambda: matmul[grid](*args, m, n, k, BM=tile, BN=tile, BK=32, G=8),
        lambda: (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16),
    )
    if m in (1024, 2048):
        goal(f"float16 GEMM {m}^3, replay over numpy", ratio, 1.5, "x")


@triton.jit
def embed(table_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(table_ptr + tl.load(index_ptr + pid) * width + at, mask=at < width)
    tl.store(out_ptr + pid * width + at, x, mask=at < width)


def test_embedding() -> None:
    table = RNG.standard_normal((50_000, 256)).astype(np.float32)
    index = RNG.integers(0, 50_000, 4096)
    args = [OnDevice(table), OnDevice(index), OnDevice(np.zeros((4096, 256), np.float32))]
    compare(
        "embedding of 4096 x 256",
        lambda: embed[(4096,)](*args, 256, BLOCK=256),
        lambda: table[index],
    )
