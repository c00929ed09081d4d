# A division of libdevice that rounds towards zero.
# run: kernbench torchrun {file}
# expect: towards zero: True

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def divide(x, y, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, libdevice.div_rz(tl.load(x + at), tl.load(y + at)))


x, y = torch.tensor([1.0, -1.0, 7.0, 1.0], device="cuda"), torch.full((4,), 3.0, device="cuda")
out = torch.empty_like(x)
divide[(1,)](x, y, out, BLOCK=4)

# In float64 a quotient of small whole numbers is exact enough to be cut at float32's last bit.
exact = x.cpu().double() / y.cpu().double()
nearest = exact.float()
cut = torch.where(
    nearest.double().abs() > exact.abs(),
    torch.nextafter(nearest, torch.zeros_like(nearest)),
    nearest,
)
print("towards zero:", torch.equal(out.cpu(), cut))
