"""Grids that a GPU's driver refuses are refused, by dimension and by what the device holds."""

from __future__ import annotations

import resource

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import UsageError


@triton.jit
def one(out):
    tl.store(out, 1)


def launch(machine: str, grid: tuple[int, ...], **options: object) -> None:
    with kernbench.RuntimeContext(machine=machine, data=False) as torch:
        one[grid](torch.zeros(1, dtype="i32"), **options)


@pytest.mark.adr("0233-D1")
@pytest.mark.parametrize(
    ("machine", "grid", "words"),
    [
        ("h100-sxm", (1, 65_535), ""),
        ("h100-sxm", (70_000,), ""),
        ("h100-sxm", (1, 65_536), "65,536 programs in y, but CUDA takes at most 65,535"),
        ("b200", (1, 1, 65_536), "65,536 programs in z, but CUDA takes at most 65,535"),
        ("h100-sxm", (2**31,), "in x, but CUDA takes at most 2,147,483,647"),
        ("h100-sxm", (2**31 - 1,), "but at most 134,217,728 can be simulated"),
        ("mi300x", (1, 65_536), ""),
        ("mi300x", (2**24,), "in x, but HIP takes at most 16,777,215"),
        ("ahbm", (1, 70_000), ""),
        ("ahbm", (2**31,), "in x, but kernbench takes at most 134,217,728"),
        ("h100-sxm", (0, 70_000), ""),
    ],
)
def test_each_dimension_has_its_limit(machine: str, grid: tuple[int, ...], words: str) -> None:
    if not words:
        launch(machine, grid)
        return
    with pytest.raises(UsageError, match=f"kernel one has .*{words}"):
        launch(machine, grid)


@pytest.mark.adr("0233-D1")
def test_a_grid_that_is_refused_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for machine in ("h100-sxm", "ahbm"):
        with pytest.raises(UsageError):
            launch(machine, (2**31 - 1,))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


@pytest.mark.adr("0233-D3")
def test_a_cooperative_launch_has_as_many_programs_as_the_device_holds() -> None:
    # 132 multiprocessors of 2048 threads each.
    for num_warps, most in ((4, 132 * 16), (8, 132 * 8), (32, 132 * 2)):
        options = {"num_warps": num_warps, "launch_cooperative_grid": True}
        launch("h100-sxm", (most,), **options)
        launch("h100-sxm", (most + 1,), num_warps=num_warps)
        with pytest.raises(UsageError, match=f"{most + 1:,} programs, .* holds {most:,} of them"):
            launch("h100-sxm", (most + 1,), **options)
