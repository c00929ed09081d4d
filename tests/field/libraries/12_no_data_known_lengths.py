# A loop bounded by a length that the host made, without data: paged attention, varlen kernels.
# run: kernbench torchrun --no-data --machine h100-sxm {file}
# expect: \[100, 1000\]
# never: NoDataError

import torch
import triton
import triton.language as tl


@triton.jit
def sum_rows(x, lengths, y, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(lengths + row)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0)
    tl.store(y + row, tl.sum(total))


lengths = torch.tensor([100, 1000], dtype=torch.int32).cuda()
print(lengths.tolist())
sum_rows[(2,)](
    torch.empty(2, 1000, device="cuda"), lengths, torch.empty(2, device="cuda"), 1000, BLOCK=128
)
