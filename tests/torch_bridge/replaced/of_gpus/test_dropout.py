"""Dropout on a device: one operation forward and one backward; on the host as PyTorch has it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
assert F.dropout(torch.ones(64), 0.5).tolist() == EXPECTED
x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
y = F.dropout(x, 0.25)
y.backward(torch.ones(1000, 1000, device="cuda"))
if DATA:
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.01
    assert torch.equal(x.grad, y.detach())
    assert y.max().item() == torch.tensor(4 / 3).item()
    torch.cuda.manual_seed(1); first = F.dropout(x, 0.5)
    torch.cuda.manual_seed(1); assert torch.equal(first, F.dropout(x, 0.5))
    assert F.dropout(x, 1.0).sum().item() == 0
assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0) is x
try:
    torch.dropout(x, 2.0, True)
except RuntimeError:
    pass
else:
    raise AssertionError("not refused")
"""


@pytest.mark.parametrize("data", [True, False])
def test_dropout_is_one_operation_of_a_device(data: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(torch.ones(64), 0.5).tolist()
    path = tmp_path / "case.py"
    path.write_text(SOURCE.replace("EXPECTED", str(expected)).replace("DATA", str(data)))
    log = simulated(path, data=data).op_log
    templates = [
        instance.template for instance in log.instances if "dropout" in instance.template.name
    ]
    forward, backward = templates[:2]
    assert [forward.name, backward.name] == ["aten.native_dropout", "aten.native_dropout_backward"]
    # The result and its mask for the backward; the mask alone: the cache has the gradients.
    assert (forward.hbm_bytes, backward.hbm_bytes) == (5 * 10**6, 10**6)
    assert not any("bernoulli" in instance.template.name for instance in log.instances)
    torch.manual_seed(0)
    assert torch.nn.functional.dropout(torch.ones(64), 0.5).tolist() == expected
