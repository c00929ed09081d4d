"""Products that PyTorch has for GPUs only, against those of float32 on the host.

python products_for_gpus.py data|"no data" CASE
"""

import sys

import torch
from torch.nn import functional as F

has_data = sys.argv[1] == "data"
torch.manual_seed(0)


def made(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def near(result, expected):
    assert result.is_cuda
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    if has_data:
        torch.testing.assert_close(result.cpu(), expected)


def halves():
    for half in (torch.float16, torch.bfloat16):
        a, b = made(5, 7, dtype=half), made(7, 3, dtype=half)
        A, B = made(2, 5, 7, dtype=half), made(2, 7, 3, dtype=half)
        c, C = made(5, 3, dtype=torch.float32), made(2, 5, 3, dtype=torch.float32)
        da, db, dA, dB, dc, dC = (item.cuda() for item in (a, b, A, B, c, C))
        wide = {"out_dtype": torch.float32}
        near(torch.mm(da, db, **wide), a.float() @ b.float())
        near(torch.bmm(dA, dB, **wide), A.float() @ B.float())
        near(
            torch.addmm(dc, da, db, beta=0.5, alpha=2, **wide),
            c * 0.5 + 2 * (a.float() @ b.float()),
        )
        near(torch.addmm(dc.to(half), da, db, **wide), c.to(half).float() + a.float() @ b.float())
        near(torch.baddbmm(dC, dA, dB, alpha=2, **wide), C + 2 * (A.float() @ B.float()))
        near(torch.mm(da, db, out_dtype=half), a @ b)
        out = torch.empty(5, 3, device="cuda")
        assert torch.mm(da, db, out=out, **wide) is out
        near(out, a.float() @ b.float())
    # More than a half holds: the products are exact, and summed in float32.
    a, b = torch.full((1, 2), 255.0).bfloat16(), torch.tensor([[255.0], [1.0]]).bfloat16()
    near(torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32), torch.tensor([[255.0 * 255 + 255]]))


def grouped():
    f8 = torch.float8_e4m3fn

    def eighths(*shape):
        return made(*shape).to(f8)

    ends = torch.tensor([16, 16, 48], dtype=torch.int32)

    def product(a, b, x, y):
        return ((a.float() * x[:, None]) @ (b.float() * y)).bfloat16()

    def call(*value, offs=None):
        a, b, x, y = (item.cuda() for item in value)
        offs = None if offs is None else offs.cuda()
        tensor = torch._scaled_grouped_mm(a, b, x, y, offs=offs, out_dtype=torch.bfloat16)
        row = F.ScalingType.RowWise
        again = F.scaled_grouped_mm(a, b, x, row, y, row, offs=offs, output_dtype=torch.bfloat16)
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, again)
        return tensor

    spans = [slice(0, 16), slice(16, 16), slice(16, 48)]
    a, b = eighths(48, 32), eighths(3, 16, 32).transpose(1, 2)
    x, y = torch.rand(48), torch.rand(3, 16)
    near(
        call(a, b, x, y, offs=ends),
        torch.cat([product(a[s], b[n], x[s], y[n]) for n, s in enumerate(spans)]),
    )
    a, x = eighths(3, 48, 32), torch.rand(3, 48)
    near(call(a, b, x, y), torch.stack([product(a[n], b[n], x[n], y[n]) for n in range(3)]))
    b, y = eighths(48, 32).t(), torch.rand(48)
    near(
        call(a, b, x, y, offs=ends),
        torch.cat([product(a[n], b[:, s], x[n], y[s]) for n, s in enumerate(spans)], 1),
    )
    a, b = eighths(16, 48), eighths(32, 48).t()
    x, y = torch.rand(3 * 16), torch.rand(3 * 32)
    near(
        call(a, b, x, y, offs=ends),
        torch.stack(
            [
                product(a[:, s], b[s], x[16 * n : 16 * n + 16], y[32 * n : 32 * n + 32])
                for n, s in enumerate(spans)
            ]
        ),
    )


if __name__ == "__main__":
    globals()[sys.argv[2]]()
