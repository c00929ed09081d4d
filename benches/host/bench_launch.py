"""Question: what does one warm launch cost in kernbench's own code, beside Triton's?

A memoised ``kernel[grid](...)`` without data, in CPU time. Triton's share is measured with a
launcher that does nothing, so the difference is ours.
"""

from __future__ import annotations

from time import process_time

import triton
import triton.language as tl

import kernbench
from conftest import Goal
from kernbench.ops import KernelProbe
from kernbench.triton_backend import activate

LAUNCHES = 3000


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


class Nothing(KernelProbe):
    """A launcher that accepts every launch and does nothing."""

    def launch(self, binary: object, grid: object, args: object) -> None:
        pass


def seconds_per_launch(launch: object) -> float:
    launch()  # type: ignore[operator]
    start = process_time()
    for _ in range(LAUNCHES):
        launch()  # type: ignore[operator]
    return (process_time() - start) / LAUNCHES


def test_warm_launch(goal: Goal) -> None:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x = torch.zeros(4096, dtype="f32")
        y = torch.empty(4096, dtype="f32")

        def launch() -> None:
            scale[(4,)](x, y, 4096, 2.0, BLOCK=1024)

        ours = seconds_per_launch(launch)
        with activate(Nothing()):
            triton_only = seconds_per_launch(launch)
    print(f"\n  {ours * 1e6:.1f} us in all, {triton_only * 1e6:.1f} us of it Triton's")
    goal("warm launch, kernbench's own", (ours - triton_only) * 1e6, 100, " us")
