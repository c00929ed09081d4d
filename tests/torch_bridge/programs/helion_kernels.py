"""Runs kernels written in Helion, and compares them with PyTorch's operations."""

import time

import helion
import helion.language as hl
import torch


@helion.kernel(config=helion.Config(block_sizes=[64, 64, 32]), dot_precision="ieee")
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            total = torch.addmm(total, x[rows, inner], y[inner, columns])
        out[rows, columns] = total
    return out


@helion.kernel(config=helion.Config(block_sizes=[8]))
def softmax(x: torch.Tensor) -> torch.Tensor:
    n, _ = x.size()
    out = torch.empty_like(x)
    for rows in hl.tile(n):
        out[rows, :] = torch.nn.functional.softmax(x[rows, :], dim=1)
    return out


def main():
    torch.manual_seed(0)
    x, y = torch.randn(128, 96, device="cuda"), torch.randn(96, 64, device="cuda")
    began = time.perf_counter()
    torch.testing.assert_close(matmul(x, y).cpu(), x.cpu() @ y.cpu())
    torch.testing.assert_close(softmax(x).cpu(), x.cpu().softmax(1))
    # To compile takes seconds of real time.
    assert time.perf_counter() - began < 0.1


main()
