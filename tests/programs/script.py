"""Launches a kernel, and ends as the last arguments say: --exit, --status or --raise."""

import sys

import triton
import triton.language as tl
from beside import SCALE

DEVICE = triton.runtime.driver.active.get_active_torch_device()
TARGET = triton.runtime.driver.active.get_current_target()


@triton.jit
def fill(out, n, value, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, offsets * value, mask=offsets < n)


def main(arguments):
    from kernbench.runtime_api import current_context

    out = current_context().zeros(100)

    def launch():
        fill[(4,)](out, 100, SCALE, BLOCK=32)

    ms = triton.testing.do_bench(launch)
    assert out.tolist() == [0] * 100, "timing must not touch data"
    launch()
    assert out.tolist() == [SCALE * i for i in range(100)]
    print(f"{DEVICE=} {TARGET.backend=} {arguments=} {ms=:.6f}")


if __name__ == "__main__":
    main(sys.argv[1:])
    if "--exit" in sys.argv:
        sys.exit(sys.argv[-1])
    if "--status" in sys.argv:
        sys.exit(int(sys.argv[-1]))
    if "--raise" in sys.argv:
        raise LookupError("nothing there")
