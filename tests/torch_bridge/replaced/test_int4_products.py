"""Products with packed weights of four bits: numbers against numpy, shapes, mistakes, time."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import numpy, torch
torch.manual_seed(0)
m, n, k, group = 5, 16, 256, 64
x = torch.randn(m, k).bfloat16()
elements = torch.randint(0, 16, (n, k))
scales = torch.rand(k // group, n, 2).bfloat16()
pairs = (elements[:, ::2] << 4 | elements[:, 1::2]).to(torch.uint8)
packed = torch._convert_weight_to_int4pack(pairs.cuda(), 4)
assert packed.shape == (n // 8, k // 64, 32, 2) and packed.dtype is torch.int32
made = torch._weight_int4pack_mm(x.cuda(), packed, group, scales.cuda())
assert made.shape == (m, n) and made.dtype is torch.bfloat16
if CHECK:
    scale, zero = (scales.float().numpy()[..., each].T for each in (0, 1))
    wide = [numpy.repeat(each, group, axis=1) for each in (scale, zero)]
    weight = (elements.numpy() - 8) * wide[0] + wide[1]
    expected = x.float().numpy() @ weight.T
    found = made.cpu().float().numpy()
    assert numpy.abs(found - expected).max() < 0.02 * numpy.abs(expected).max()
for wrong in (
    lambda: torch._convert_weight_to_int4pack(pairs.cuda(), 3),
    lambda: torch._convert_weight_to_int4pack(pairs.cuda()[:, :100], 4),
    lambda: torch._convert_weight_to_int4pack(pairs.cuda().int(), 4),
    lambda: torch._weight_int4pack_mm(x.cuda()[:, :64], packed, group, scales.cuda()),
    lambda: torch._weight_int4pack_mm(x.cuda(), packed, 48, scales.cuda()),
    lambda: torch._weight_int4pack_mm(x.cuda(), packed, group, scales.cuda()[:1]),
):
    try:
        wrong()
    except RuntimeError:
        continue
    raise AssertionError("not refused")
"""


@pytest.mark.parametrize("data", [True, False])
def test_a_packed_product_is_that_of_the_matrix(data: bool, tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(SOURCE.replace("CHECK", str(data)))
    simulated(path, data=data)


def test_narrow_weights_take_the_time_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n"
        "n = k = 16384  # memory's ramp is a small part of the time\n"
        "x = torch.empty(1, k, device='cuda', dtype=torch.bfloat16)\n"
        "wide = torch.empty(k, n, device='cuda', dtype=torch.bfloat16)\n"
        "bytes = torch.empty(n, k, device='cuda', dtype=torch.int8)\n"
        "scales = torch.empty(n, device='cuda', dtype=torch.bfloat16)\n"
        "packed = torch.empty(n // 8, k // 128, 32, 4, device='cuda', dtype=torch.int32)\n"
        "zeros = torch.empty(k // 32, n, 2, device='cuda', dtype=torch.bfloat16)\n"
        "torch.empty(1 << 29, device='cuda').zero_()  # what follows waits in the queue\n"
        "x @ wide\n"
        "torch._weight_int8pack_mm(x, bytes, scales)\n"
        "torch._weight_int4pack_mm(x, packed, 32, zeros)\n"
        "many = torch.empty(4096, k, device='cuda', dtype=torch.int8)\n"
        "torch._int_mm(many, bytes.t())\n"
    )
    log = simulated(path, data=False, machine="a100-sxm-80g:1").op_log
    times = {instance.template.name: instance.template for instance in log.instances}
    wide, eight, four, ints = (
        times[f"aten.{name}"]
        for name in ("mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_int_mm")
    )
    assert eight.duration_ps / wide.duration_ps == pytest.approx(0.5, abs=0.1)
    assert four.duration_ps / wide.duration_ps == pytest.approx(0.625 / 2, abs=0.1)
    assert four.hbm_bytes == pytest.approx(0.625 * 16384**2, rel=0.01)
    # Twice the rate of bf16.
    assert ints.duration_ps / 1e6 < 2 * 4096 * 16384**2 / 312e6
    assert ints.flops >= 2 * 4096 * 16384**2
