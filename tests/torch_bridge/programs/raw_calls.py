"""What code for CUDA builds calls below torch.cuda: generated launchers, and what Inductor writes.

python raw_calls.py [compiled], which compiles something before
"""

import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl

dist.init_process_group("nccl")
own, other = dist.get_rank(), 1 - dist.get_rank()
torch.cuda.set_device(own)


@triton.jit
def twice(source, into, n: tl.constexpr):
    lane = tl.arange(0, n)
    tl.store(into + lane, tl.load(source + lane) * 2)


if sys.argv[1:]:
    tensor = torch.arange(4.0, device="cuda")
    assert torch.compile(lambda x: x * 2 + 1)(tensor).tolist() == [1, 3, 5, 7]

from torch._C import _cuda_getCurrentRawStream as get_raw_stream  # noqa: E402

assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
for index in (own, other):
    with torch.cuda._DeviceGuard(index):
        assert torch.cuda.current_device() == index
        source = torch.arange(8.0, device="cuda")
        assert_size_stride(source, (8,), (1,))
        into = empty_strided_cuda((2, 4), (4, 1), torch.float32)
        assert into.device == torch.device("cuda", index)
        get_raw_stream(index)
        twice[(1,)](source, into, 8)
        assert into.tolist() == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert torch.cuda.current_device() == own
before = torch.cuda._exchange_device(other)
assert (before, torch.cuda._maybe_exchange_device(own)) == (own, other)
assert torch.cuda._maybe_exchange_device(-1) == -1
if not sys.argv[1:]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert get_raw_stream(own) == side.cuda_stream
        assert torch.cuda.ExternalStream(get_raw_stream(own)) == side
    assert torch._C._cuda_getCurrentStream(own)[1:] == (own, 1)
    torch._C._cuda_synchronize()
    parts = torch._C._cuda_getDefaultStream(own)
    with torch.cuda.stream(side):
        torch._C._cuda_setStream(*parts)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
