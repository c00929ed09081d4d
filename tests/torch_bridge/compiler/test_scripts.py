"""TorchScript compiles programs that call what the bridge replaces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import load_machine  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """\
import sys
import torch
import torch.nn.functional as F
from torch import Tensor


@torch.jit.script
def work(x: Tensor) -> Tensor:
    y = F.dropout(F.relu(x) * torch.tensor(2.0), 0.5, False) + torch.as_tensor(1.0)
    z = F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
    return F.layer_norm(z, [4]) + torch.rms_norm(y, [4])


x = torch.arange(16.0).view(4, 4)
found = work(x.cuda())
assert found.is_cuda
torch.save(found.cpu(), sys.argv[1])
"""


def num_known() -> dict[str, int]:
    """Return how many functions TorchScript takes for each of some operations."""
    names = Counter(torch.jit._builtins._get_builtin_table().values())
    return {name: names[f"aten::{name}"] for name in ("tensor", "scaled_dot_product_attention")}


@pytest.mark.parametrize("machine", ["ahbm", "h100-sxm"])
def test_a_script_calls_functions_that_are_replaced(tmp_path: Path, machine: str) -> None:
    program, saved = tmp_path / "program.py", tmp_path / "found.pt"
    program.write_text(PROGRAM)
    known = num_known()
    simulated(program, saved, machine=load_machine(machine))
    y = torch.arange(16.0).view(4, 4) * 2 + 1
    expected = torch.softmax(y @ y.T / 2, dim=-1) @ y
    expected = (expected - expected.mean(1, keepdim=True)) / torch.sqrt(
        expected.var(1, correction=0, keepdim=True) + 1e-5
    )
    expected += y / torch.sqrt(y.square().mean(1, keepdim=True) + torch.finfo(torch.float32).eps)
    torch.testing.assert_close(torch.load(saved), expected)
    assert num_known() == known
