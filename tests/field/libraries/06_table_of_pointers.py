# A kernel takes its tensors by a table of addresses, as grouped products and LoRA kernels do.
# run: kernbench torchrun {file}
# expect: \[tensor\(\[0\., 0\.\]\), tensor\(\[2\., 2\.\]\), tensor\(\[4\., 4\.\]\)\]

import torch
import triton
import triton.language as tl


@triton.jit
def double_each(table, n, BLOCK: tl.constexpr):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


xs = [torch.full((2,), float(i), device="cuda") for i in range(3)]
table = torch.tensor([x.data_ptr() for x in xs], device="cuda", dtype=torch.int64)
double_each[(3,)](table, 2, BLOCK=2)
print([x.cpu() for x in xs])
