"""RMS norms on a device: one operation forward and one backward, with PyTorch's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
    pytest.skip("this release composes RMS norms", allow_module_level=True)

from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)

def run(x, weight, eps):
    leaves = [x.requires_grad_(), *([] if weight is None else [weight.requires_grad_()])]
    out = F.rms_norm(x, (3, 4), weight, eps)
    outer = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out)
    return [out, *torch.autograd.grad(out, leaves, outer)]

for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for weighted, eps in ((True, 1e-3), (True, None), (False, 1e-3)):
        x = torch.randn(5, 3, 4, dtype=dtype)
        weight = torch.randn(3, 4, dtype=dtype) if weighted else None
        moved = None if weight is None else weight.detach().cuda()
        found = run(x.detach().cuda().transpose(0, 0), moved, eps)
        for one, other in zip(found, run(x, weight, eps), strict=True):
            assert one.device.type == "cuda" and one.dtype == other.dtype == dtype
            assert one.shape == other.shape
            if DATA:
                assert torch.equal(one.cpu(), other)
assert F.rms_norm(torch.ones(1, 2, dtype=torch.bfloat16) * 1e-3, (2,)).tolist() == EXPECTED
if DATA:
    there = F.rms_norm(torch.ones(1, 2, dtype=torch.bfloat16).cuda() * 1e-3, (2,))
    assert there.tolist() == EXPECTED
plain = torch.randn(6, 4)
if DATA:
    assert F.rms_norm(plain, (4,)).tolist() == (
        plain * torch.rsqrt(plain.pow(2).mean(-1, True) + torch.finfo(torch.float32).eps)
    ).tolist()
for shape, weight in (((5,), None), ((), None), ((4,), torch.ones(3, device="cuda"))):
    try:
        F.rms_norm(plain.cuda(), shape, weight)
    except RuntimeError as error:
        assert "xpected" in str(error), error
    else:
        raise AssertionError("not refused")
MIXED
"""
MIXED = "F.rms_norm(plain.cuda().half(), (4,), torch.ones(4, device='cuda'))"


@pytest.mark.parametrize("data", [True, False])
def test_norms_are_one_operation_of_a_device(data: bool, tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    # What PyTorch itself makes of small numbers, to which it adds float32's least.
    small = torch.nn.functional.rms_norm(torch.ones(1, 2, dtype=torch.bfloat16) * 1e-3, (2,))
    source = SOURCE.replace("EXPECTED", str(small.tolist()))
    path.write_text(source.replace("DATA", str(data)).replace("MIXED", ""))
    names = [instance.template.name for instance in simulated(path, data=data).op_log.instances]
    assert names.count("aten._fused_rms_norm") == 9 + data
    assert names.count("aten._fused_rms_norm_backward") == 9
    assert not {"aten.pow", "aten.rsqrt"} & set(names)
    # After a run PyTorch's own are back.
    x = torch.randn(2, 4)
    wanted = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).add(1e-3))
    assert torch.equal(torch.nn.functional.rms_norm(x, (4,), eps=1e-3), wanted)


def test_norms_with_weights_of_another_dtype_are_composed(tmp_path: Path) -> None:
    path = tmp_path / "case.py"
    path.write_text(
        f"import torch\nimport torch.nn.functional as F\nplain = torch.ones(6, 4)\n{MIXED}"
    )
    names = {instance.template.name for instance in simulated(path, data=False).op_log.instances}
    assert {"aten.pow", "aten.rsqrt"} <= names
    assert "aten._fused_rms_norm" not in names
