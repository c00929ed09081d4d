"""What libraries register for all ranks, and what one of them adds.

python libraries.py CASE [ARGUMENTS]"""

import os
import sys

import torch

rank = int(os.environ["RANK"])


def imported():
    import kernbench_gems as gems

    x = torch.full((2,), -1.0, device="cuda")
    assert torch.ops.kernbench_gems.plus(x).tolist() == [99, 99]
    assert gems.custom(x).tolist() == [199, 199]
    if rank == 0:
        # Through the library's own object, and for this rank.
        gems.for_aten.impl("neg", lambda x: x * 5, "CUDA")
    assert torch.neg(x)[0] == (1 if rank else -5)
    if rank == 1:
        with gems.use_gems():
            torch.cuda.synchronize()
            assert torch.abs(x)[0] == -3
    assert torch.abs(x)[0] == 1


def of_before_the_run(added):
    added = int(added)
    x = torch.zeros(2, device="cuda")
    assert torch.ops.kernbench_before.plus(x, added).tolist() == [added] * 2
    if rank:
        torch.library.register_kernel("kernbench_before::plus", "cuda", lambda x, n=added: x - n)
    torch.cuda.synchronize()
    tensor = torch.ops.kernbench_before.plus(x, added)
    assert tensor.is_cuda
    assert tensor.tolist() == [-added if rank else added] * 2
    assert torch.abs(x - 3)[0] == 3
    if rank:
        torch._of_the_test.impl("abs", torch.neg, "CUDA")
    torch.cuda.synchronize()
    assert torch.abs(x + 3)[0] == (-3 if rank else 3)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
