"""``one_hot`` is what a GPU runs."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

SOURCE = """
import torch
from torch.nn import functional as F

chosen = torch.arange(64).remainder(8).view(16, 4)
there = chosen.cuda()
for classes in (-1, 8, 9):
    found, expected = F.one_hot(there, classes), F.one_hot(chosen, classes)
    assert found.dtype == torch.int64 and found.is_cuda
    assert found.cpu().equal(expected)
assert torch.vmap(lambda each: F.one_hot(each, 8))(there).shape == (16, 4, 8)
assert torch.compile(lambda each: F.one_hot(each, 8) * 2)(there).shape == (16, 4, 8)
for given, classes in ((there[:0], -1), (there.int(), 8), (there, 0)):
    try:
        F.one_hot(given, classes)
    except RuntimeError:
        continue
    raise AssertionError("not refused")
"""


@pytest.mark.adr("0098-D10")
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_ones_are_scattered_among_zeros_and_the_host_reads_nothing(
    tmp_path: Path, data: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SOURCE)
    simulated(program, machine="a100-sxm-80g", data=data)
    program.write_text(
        "import torch\n"
        "torch.nn.functional.one_hot(torch.zeros(512, 8, dtype=torch.long).cuda(), 64)\n"
    )
    log = simulated(program, machine="a100-sxm-80g", data=data).op_log
    names = [instance.template.name for instance in log.instances]
    assert names == ["copy_from_host", "aten.zeros", "aten.scatter_"]
