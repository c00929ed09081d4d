# Any object with data_ptr() and dtype is a pointer, whatever its other attributes are called.
# run: kernbench torchrun {file}
# expect: A tensor\(\[4\., 6\.\]\)
# expect: B tensor\(\[4\., 6\.\]\)

import torch
import triton
import triton.language as tl


class A:
    def __init__(self, tensor, offset):
        self.base, self.dtype, self.at = (
            tensor,
            tensor.dtype,
            tensor.data_ptr() + offset * tensor.element_size(),
        )

    def data_ptr(self):
        return self.at


class B:
    def __init__(self, tensor, offset):
        self._base, self.dtype, self.at = (
            tensor,
            tensor.dtype,
            tensor.data_ptr() + offset * tensor.element_size(),
        )

    def data_ptr(self):
        return self.at


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


for kind in (A, B):
    x = torch.arange(4.0, device="cuda")
    y = torch.zeros(2, device="cuda")
    double_kernel[(1,)](kind(x, 2), y, 2, BLOCK=2)
    print(kind.__name__, y.cpu())
