"""``torch.autocast("cuda")`` on simulated devices; PyTorch's own lists say what CUDA casts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, *, data: bool = True) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text("import torch\n" + source)
    return simulated(path, data=data)


LISTED = """
import warnings
from torch.testing._internal.autocast_test_lists import AutocastTestLists

warnings.simplefilter("ignore")
# The CPU has no cuDNN, and what is below convolutions has no shape function in PyTorch 2.12.
WITHOUT = {"cudnn_convolution", "cudnn_convolution_transpose", "_convolution"}
half, full = torch.float16, torch.float32
lists = AutocastTestLists("cuda:0")

def cast(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(each, dtype) for each in value)
    return value

def listed(value):
    return value if isinstance(value, tuple) else (value,)

def check(module, entries, dtype):
    count = 0
    for name, args, *rest in entries:
        if name in WITHOUT or not hasattr(module, name) or isinstance(args, str):
            continue
        named = rest[0] if rest and isinstance(rest[0], dict) else {}
        with torch.autocast("cuda", half):
            found = getattr(module, name)(*args, **named)
            with torch.autocast("cuda", enabled=False):
                wanted = getattr(module, name)(*cast(args, dtype), **named)
        for one, other in zip(listed(found), listed(wanted)):
            assert one.dtype == dtype, (name, one.dtype)
            if not DATA:
                continue
            assert torch.equal(one.isnan(), other.isnan()), name
            torch.testing.assert_close(one.nan_to_num(), other.nan_to_num(), rtol=1e-3, atol=1e-3)
        count += 1
    return count

assert check(torch, lists.torch_fp16, half) > 20
assert check(torch._C._nn, lists.nn_fp16, half) == 1
assert check(torch._C._linalg, lists.linalg_fp16, half) == 2
assert check(torch, lists.torch_fp32, full) > 40
assert check(torch._C._nn, lists.nn_fp32, full) > 6
assert check(torch, lists.torch_need_autocast_promote, full) > 8
"""


@pytest.mark.slow
@pytest.mark.adr("0099-D1")
@pytest.mark.parametrize("data", [True, False])
def test_what_pytorch_lists_for_cuda_is_cast(tmp_path: Path, data: bool) -> None:
    run(tmp_path, LISTED.replace("DATA", str(data)), data=data)


@pytest.mark.adr("0099-D1")
@pytest.mark.parametrize("data", [True, False])
def test_only_tensors_of_devices_are_cast_and_only_inside(tmp_path: Path, data: bool) -> None:
    source = """
w = torch.randn(8, 8, device="cuda")
host = torch.randn(8, 8)
with torch.autocast("cuda", torch.bfloat16):
    assert (w @ w).dtype == torch.bfloat16
    assert (host @ host).dtype == torch.float32
    assert (w.double() @ w.double()).dtype == torch.float64
    assert w.half().softmax(0, dtype=torch.float64).dtype == torch.float64
    with torch.autocast("cuda", enabled=False):
        assert (w @ w).dtype == torch.float32
    assert (w @ w).dtype == torch.bfloat16
    q = torch.randn(1, 2, 4, 8, device="cuda")
    attention = torch.nn.functional.scaled_dot_product_attention
    assert attention(q, q, q, is_causal=True).dtype == torch.bfloat16
with torch.autocast("cpu", torch.bfloat16):
    assert (host @ host).dtype == torch.bfloat16
assert (w @ w).dtype == torch.float32
"""
    run(tmp_path, source, data=data)


TRAINING = """
import torch.nn as nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 16, device="cuda")
for step in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        y = model(model(x))  # weights are cast once
        loss = torch.nn.functional.mse_loss(y, x)
    loss.backward()
    assert all(each.grad.dtype == torch.float32 for each in model.parameters())
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.adr("0099-D2")
def test_training_under_autocast_casts_the_same_without_data(tmp_path: Path) -> None:
    def operations(data: bool) -> Counter[str]:
        log = run(tmp_path, TRAINING, data=data).op_log
        return Counter(each.template.name for each in log.instances)

    found = operations(data=False)
    assert found == operations(data=True)
    # Two weights, two biases and the input, the inner results, and their gradients.
    once = TRAINING.replace("model(model(x))", "model(x)")
    fewer = Counter(each.template.name for each in run(tmp_path, once, data=False).op_log.instances)
    assert 0 < found["aten._to_copy"] - fewer["aten._to_copy"] <= 2 * 4


@pytest.mark.adr("0099-D1")
def test_what_cuda_refuses_under_autocast_is_refused(tmp_path: Path) -> None:
    source = """
x = torch.rand(4, device="cuda")
with torch.autocast("cuda"):
    torch.nn.functional.binary_cross_entropy(x, x)
"""
    with pytest.raises(UnsupportedTorchError, match="binary_cross_entropy_with_logits"):
        run(tmp_path, source)


@pytest.mark.adr("0099-D1")
def test_after_a_run_pytorch_has_its_own_kernels(tmp_path: Path) -> None:
    run(tmp_path, "x = torch.ones(2, 2).cuda()\nwith torch.autocast('cuda'): x.mm(x)")
    assert "autocast.py" not in torch._C._dispatch_dump("aten::mm")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
