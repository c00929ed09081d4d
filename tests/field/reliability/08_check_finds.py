# --check finds two lanes of one store on one element, and a branch decided by undefined lanes.
# run: python {file}
# expect: lanes found
# expect: scatter found
# expect: branch found

import warnings

import triton
import triton.language as tl

import kernbench


@triton.jit
def lanes(x, B: tl.constexpr):  # which of two lanes wins is not defined
    o = tl.arange(0, B)
    tl.store(x + o // 2, o * 1.0)


@triton.jit
def scatter(ix, x, B: tl.constexpr):  # the same, by data
    o = tl.arange(0, B)
    tl.store(x + tl.load(ix + o), o * 1.0)


@triton.jit
def branch(x, y, n, B: tl.constexpr):  # a masked-off load without other= decides a branch
    o = tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    if tl.sum(v) > 3:
        tl.store(y + o, o * 1.0)


for name in ("lanes", "scatter", "branch"):
    result = False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with kernbench.RuntimeContext(machine="ahbm", check=True) as t:
                if name == "lanes":
                    lanes[(1,)](t.empty(64), B=64)
                if name == "scatter":
                    indices = t.tensor([0, 1, 2, 3, 4, 5, 6, 6], dtype="i32")
                    scatter[(1,)](indices, t.empty(8), B=8)
                if name == "branch":
                    branch[(1,)](t.ones(50), t.empty(64), 50, B=64)
                t.ahbm.synchronize()
        result = bool(caught)
    except kernbench.KernbenchError as error:
        print(error)
        result = True
    print(name, "found" if result else "silent")
