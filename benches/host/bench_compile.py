"""Question: what does it take from TTIR to commands?

In CPU time, best of several, for kernels in the manner of Triton's tutorials 01 to 06 and 09, up to
an attention backward pass, and attention over a long causal context. *Cold* is our whole
compilation: text to SSA with its verification, the TCM that a program needs, and evaluation to a
trace on a grid of the tutorial's size. Triton's own tracing (10 to 150 ms) comes before it, and
the schedule on a machine (also printed) after it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import inductor_kernels as inductor
import pytest
import tutorial_attention as attention
import tutorial_kernels as kernels
from tutorial_gemm import matmul

from conftest import Goal
from kernbench.dtypes import as_dtype
from kernbench.errors import NeedsDataError
from kernbench.hardware import load_machine
from kernbench.kernel_ir import evaluate, footprints, parse_module, tcm_use
from kernbench.kernel_time import Conditions, schedule_kernel
from kernbench.ops import KernelProbe
from kernbench.triton_backend import KernelBinary, activate


class Pointer:
    def __init__(self, dtype: str) -> None:
        self.dtype = as_dtype(dtype)

    def data_ptr(self) -> int:
        return 1 << 20


TIMES = 9
H, F, I32 = Pointer("f16"), Pointer("f32"), Pointer("i32")
LENGTH, HEADS, HEAD = 512, 8, 64
DIVIDED = 28_311_552
"""Elements of a kernel that numbers and divides them all; arrays of them would be 226 MB each."""
LONG = 16_384
"""A causal context of which every block of rows has a trip count of its own."""

CASES: dict[str, Callable[[], Any]] = {
    "vector add": lambda: kernels.vector_add[(1024,)](F, F, F, 1 << 20, BLOCK=1024),
    "softmax": lambda: kernels.softmax[(256,)](
        F, F, 1024, 1024, 4096, 1024, BLOCK=1024, STAGES=2
    ),
    "matmul": lambda: matmul[(64,)](H, H, H, 1024, 1024, 1024, BM=128, BN=128, BK=64, G=8),
    "seeded dropout": lambda: kernels.seeded_dropout[(1024,)](F, F, 1 << 20, 0.5, 7, BLOCK=1024),
    "layer norm": lambda: kernels.norm_rows[(1151,)](
        H, H, H, H, F, F, 8192, 8192, 1e-5, BLOCK=1024
    ),
    "layer norm backward, rows": lambda: kernels.norm_backward_rows[(4096,)](
        H, H, H, H, H, H, F, F, I32, 1024, 1024, GROUP=256, BLOCK=1024
    ),
    "layer norm backward, columns": lambda: kernels.norm_backward_columns[(8,)](
        H, H, H, H, 256, 1024, BLOCK_M=32, BLOCK_N=128
    ),
    "attention": lambda: attention.attention[(LENGTH // 128, 32)](
        H, H, H, H, F, 0.125, 4, HEADS, LENGTH,
        HEAD=HEAD, BLOCK_M=128, BLOCK_N=64, CAUSAL=True,
    ),
    "attention backward": lambda: attention.attention_backward[(LENGTH // 128, 1, 32)](
        H, H, H, 0.125, H, H, H, H, F, F, HEADS * LENGTH * HEAD, LENGTH * HEAD, HEAD, HEADS,
        LENGTH, BLOCK_SMALL=32, BLOCK_LARGE=128, HEAD=HEAD,
    ),
    "attention, context of 16,384": lambda: attention.attention[(LONG // 64, 128)](
        H, H, H, H, F, 0.125, 4, 32, LONG,
        HEAD=HEAD, BLOCK_M=64, BLOCK_N=32, CAUSAL=True,
    ),
    "attention backward, context of 16,384": lambda: attention.attention_backward[
        (LONG // 128, 1, 128)
    ](
        H, H, H, 0.125, H, H, H, H, F, F, 32 * LONG * HEAD, LONG * HEAD, HEAD, 32, LONG,
        BLOCK_SMALL=32, BLOCK_LARGE=128, HEAD=HEAD,
    ),
    "persistent matmul": lambda: kernels.persistent_matmul[(32,)](
        H, H, H, 1024, 1024, 1024, BM=128, BN=128, BK=64, G=8
    ),
}  # fmt: skip


class Keeping(KernelProbe):
    """A launcher that keeps the last launch."""

    def launch(self, binary: KernelBinary, grid: tuple[int, int, int], args: Any) -> None:
        floats = [param.type.is_float for param in binary.module.kernel.params]
        self.binary, self.grid = binary, grid
        self.ints = {
            index: arg for index, arg in enumerate(args) if type(arg) is int and not floats[index]
        }

    def num_pes(self) -> int:
        return 32


def best_ms(work: Callable[[], Any], times: int = TIMES) -> float:
    result = []
    for _ in range(times):
        start = process_time()
        work()
        result.append((process_time() - start) * 1e3)
    return min(result)


def measure(launch: Callable[[], Any]) -> dict[str, float]:
    """Return the milliseconds of each part, for one kernel."""
    keeping = Keeping()
    with activate(keeping):
        launch()
    binary, grid, ints = keeping.binary, keeping.grid, keeping.ints
    options = {"num_warps": binary.num_warps, "num_stages": binary.num_stages}
    # Each call on a module of its own: what is found out about one is kept.
    modules = [parse_module(binary.ttir) for _ in range(TIMES)]

    def evaluated() -> Any:
        return evaluate(binary.module, grid, ints, **options)

    result = {
        "parse and verify": best_ms(lambda: parse_module(binary.ttir)),
        "TCM": best_ms(lambda: tcm_use(modules.pop(), binary.num_stages)),
    }
    try:
        trace = evaluated()
    except NeedsDataError:
        return {**result, "evaluate": 0.0}
    machine = load_machine("ahbm")
    result["evaluate"] = best_ms(evaluated)
    footprints(trace)
    result["schedule"] = best_ms(lambda: schedule_kernel(trace, machine, 0, Conditions()))
    return result


def test_division(goal: Goal) -> None:
    programs = -(-DIVIDED // inductor.XBLOCK)
    result = measure(
        lambda: inductor.poi_fused_cat_view[(programs,)](
            F, F, F, F, DIVIDED, XBLOCK=inductor.XBLOCK
        )
    )
    goal("28M elements divided, evaluation", result["evaluate"], 200, " ms")


def test_compilation(goal: Goal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = {}
    for index, (name, launch) in enumerate(CASES.items()):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(index)))
        parts = measure(launch)
        cold[name] = parts["parse and verify"] + parts["TCM"] + parts["evaluate"]
        text = ", ".join(f"{what} {ms:.1f}" for what, ms in parts.items())
        print(f"\n  {name}: cold {cold[name]:.1f} ms ({text})", end="")
    long = {name: cold.pop(name) for name in list(cold) if name.endswith(f"{LONG:,}")}
    slowest = max(cold, key=cold.__getitem__)
    goal(f"TTIR to commands, cold, slowest of {len(cold)}: {slowest}", cold[slowest], 30, " ms")
    for name, text in long.items():
        goal(f"TTIR to commands, cold: {name}", text, 30, " ms")
