"""Products that PyTorch has for GPUs only: halves into float32, scaled and grouped FP8."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench import dtypes, ops  # noqa: E402
from kernbench.errors import MachineError  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
def made(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)
def near(found, expected):
    assert found.is_cuda and found.dtype == expected.dtype and found.shape == expected.shape
    if COMPARED:
        torch.testing.assert_close(found.cpu(), expected)
"""
HALVES = """
for half in (torch.float16, torch.bfloat16):
    a, b = made(5, 7, dtype=half), made(7, 3, dtype=half)
    A, B = made(2, 5, 7, dtype=half), made(2, 7, 3, dtype=half)
    c, C = made(5, 3, dtype=torch.float32), made(2, 5, 3, dtype=torch.float32)
    da, db, dA, dB, dc, dC = (each.cuda() for each in (a, b, A, B, c, C))
    wide = {"out_dtype": torch.float32}
    near(torch.mm(da, db, **wide), a.float() @ b.float())
    near(torch.bmm(dA, dB, **wide), A.float() @ B.float())
    near(torch.addmm(dc, da, db, beta=0.5, alpha=2, **wide), c * 0.5 + 2 * (a.float() @ b.float()))
    near(torch.addmm(dc.to(half), da, db, **wide), c.to(half).float() + a.float() @ b.float())
    near(torch.baddbmm(dC, dA, dB, alpha=2, **wide), C + 2 * (A.float() @ B.float()))
    near(torch.mm(da, db, out_dtype=half), a @ b)
    out = torch.empty(5, 3, device="cuda")
    assert torch.mm(da, db, out=out, **wide) is out
    near(out, a.float() @ b.float())
# More than a half holds: the products are exact, and summed in float32.
a, b = torch.full((1, 2), 255.0).bfloat16(), torch.tensor([[255.0], [1.0]]).bfloat16()
near(torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float32), torch.tensor([[255.0 * 255 + 255]]))
"""
GROUPED = """
f8 = torch.float8_e4m3fn
def eighths(*shape):
    return made(*shape).to(f8)
ends = torch.tensor([16, 16, 48], dtype=torch.int32)
def product(a, b, x, y):
    return ((a.float() * x[:, None]) @ (b.float() * y)).bfloat16()
def call(*given, offs=None):
    a, b, x, y = (each.cuda() for each in given)
    offs = None if offs is None else offs.cuda()
    found = torch._scaled_grouped_mm(a, b, x, y, offs=offs, out_dtype=torch.bfloat16)
    row = F.ScalingType.RowWise
    again = F.scaled_grouped_mm(a, b, x, row, y, row, offs=offs, output_dtype=torch.bfloat16)
    assert found.dtype == torch.bfloat16 and torch.equal(found, again)
    return found
spans = [slice(0, 16), slice(16, 16), slice(16, 48)]
a, b = eighths(48, 32), eighths(3, 16, 32).transpose(1, 2)
x, y = torch.rand(48), torch.rand(3, 16)
near(call(a, b, x, y, offs=ends),
     torch.cat([product(a[s], b[n], x[s], y[n]) for n, s in enumerate(spans)]))
a, x = eighths(3, 48, 32), torch.rand(3, 48)
near(call(a, b, x, y), torch.stack([product(a[n], b[n], x[n], y[n]) for n in range(3)]))
b, y = eighths(48, 32).t(), torch.rand(48)
near(call(a, b, x, y, offs=ends),
     torch.cat([product(a[n], b[:, s], x[n], y[s]) for n, s in enumerate(spans)], 1))
a, b = eighths(16, 48), eighths(32, 48).t()
x, y = torch.rand(3 * 16), torch.rand(3 * 32)
near(call(a, b, x, y, offs=ends), torch.stack([
    product(a[:, s], b[s], x[16 * n : 16 * n + 16], y[32 * n : 32 * n + 32])
    for n, s in enumerate(spans)]))
"""


def run(folder: Path, source: str, data: bool = True, machine: str = "ahbm:4") -> RuntimeContext:
    path = folder / "case.py"
    path.write_text(f"COMPARED = {data}\n{START}{source}")
    return simulated(path, data=data, machine=machine)


@pytest.mark.parametrize("data", [True, False])
def test_products_of_halves_into_float32_are_those_of_float32(data: bool, tmp_path: Path) -> None:
    run(tmp_path, HALVES, data)


@pytest.mark.parametrize("data", [True, False])
def test_grouped_products_of_fp8_are_those_of_scaled_numbers(data: bool, tmp_path: Path) -> None:
    run(tmp_path, GROUPED, data)


@pytest.mark.adr("0064-D1")
@pytest.mark.parametrize(
    ("source", "dtype", "out_dtype"),
    [
        ("torch.mm(a, b, out_dtype=torch.float32)", "bfloat16", "float32"),
        (
            "torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)",
            "float8_e4m3fn",
            "bfloat16",
        ),
    ],
)
def test_a_product_is_timed_by_its_operands_and_what_it_writes(
    source: str, dtype: str, out_dtype: str, tmp_path: Path
) -> None:
    m, n, k = 512, 768, 1024
    context = run(
        tmp_path,
        f"of = {{'device': 'cuda', 'dtype': torch.{dtype}}}\n"
        f"a, b = torch.empty({m}, {k}, **of), torch.empty({n}, {k}, **of).t()\n"
        f"one = torch.ones((), device='cuda')\ntorch.cuda.synchronize()\n{source}\n",
        data=False,
        machine="h100-sxm",
    )
    found = context.op_log.instances[-1].template
    own = RuntimeContext(machine="h100-sxm", ranks=1, data=False)
    of, into = getattr(dtypes, dtype), getattr(dtypes, out_dtype)
    with own:
        a, b = own.empty((m, k), dtype=of), own.empty((k, n), dtype=of)
        out = own.empty((m, n), dtype=into)
        ops.matmul(a, b, out=out)
    expected = own.op_log.instances[-1].template
    assert found.flops == expected.flops == 2 * m * n * k
    assert found.duration_ps == expected.duration_ps


@pytest.mark.parametrize(
    ("source", "error", "named"),
    [
        ("torch.mm(a, a, out_dtype=torch.int32)", RuntimeError, "out_dtype must be the same"),
        ("torch.mm(a, a.float(), out_dtype=torch.float32)", RuntimeError, "one dtype"),
        (
            "torch.addmm(a.double(), a, a, out_dtype=torch.float32)",
            RuntimeError,
            "self must have the type",
        ),
        (
            "torch._scaled_grouped_mm(*[a[None].to(torch.float8_e4m3fn)] * 2, "
            "*[torch.ones(1, 16, device='cuda').to(torch.float8_e8m0fnu)] * 2)",
            UnsupportedTorchError,
            "MX formats",
        ),
    ],
)
def test_products_that_a_gpu_refuses_are_refused(
    source: str, error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=named):
        run(tmp_path, f"a = torch.ones(16, 16, dtype=torch.bfloat16, device='cuda')\n{source}")


def test_a_machine_without_fp8_says_so_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no rate for float8_e4m3fn"):
        run(
            tmp_path,
            "a, one = made(16, 16).to(torch.float8_e4m3fn).cuda(), torch.ones((), device='cuda')\n"
            "torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)",
            machine="a100-sxm-80g",
        )
