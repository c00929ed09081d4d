# Float-to-int casts out of range clamp, and NaN gives 0, as PTX has it; --check says so.
# run: python {file}
# expect: int32 \[2147483647, 2147483647, -2147483648, 0\]
# expect: uint32 \[0, 4294967295, 5, 0\]
# expect: said: True

import warnings

import torch
import triton
import triton.language as tl

import kernbench


@triton.jit
def cast(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o).to(y.dtype.element_ty))


INPUTS = (
    (torch.int32, [3e9, float("inf"), -1e10, float("nan")]),
    (torch.uint32, [-1.0, 1e10, 5.0, 0.0]),
)
for dtype, numbers in INPUTS:
    with kernbench.RuntimeContext(machine="h100-sxm") as t:
        x, y = torch.tensor(numbers), torch.zeros(4, dtype=dtype)
        cast[(1,)](x, y, B=4)
        t.ahbm.synchronize()
        print(str(dtype)[6:], y.tolist())

said = False
try:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with kernbench.RuntimeContext(machine="h100-sxm", check=True) as t:
            x, y = torch.tensor(INPUTS[0][1]), torch.zeros(4, dtype=torch.int32)
            cast[(1,)](x, y, B=4)
            t.ahbm.synchronize()
    said = any("cast" in str(item.message) for item in caught)
except kernbench.KernbenchError as error:
    print(error)
    said = True
print("said:", said)
