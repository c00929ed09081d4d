"""PyTorch's compiler is imported when a program asks for something of it, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Linear(8, 8, device="cuda")
fully_shard(model, mesh=init_device_mesh("cuda", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8, device="cuda")).sum().backward()
optimizer.step()
assert torch._dynamo.config.verbose is False
assert torch._dynamo.disable(recursive=False)(print) is print
assert "torch._dynamo.eval_frame" not in sys.modules
if os.environ.get("ASKS"):
    dist.barrier()
    import torch._dynamo.utils
    from torch._dynamo import is_compiling, reset
    assert torch._dynamo is sys.modules["torch._dynamo"]
    assert torch._dynamo.__file__ and not is_compiling()
    optimizer.step()
"""
CALLER = """
import sys
from pathlib import Path
from tests.torch_bridge.running import simulated
simulated(Path(sys.argv[1]), nprocs=2)
import torch._dynamo.eval_frame
assert torch._dynamo.__file__
adds = torch.optim.Optimizer.add_param_group.__wrapped__
asked = getattr(adds, "__dynamo_disable", None)
assert asked is not adds
torch.optim.SGD([torch.zeros(1)])
assert adds.__dynamo_disable is not adds
"""


@pytest.mark.slow
@pytest.mark.adr("0083-D2")
@pytest.mark.parametrize("asks", ["", "yes"])
def test_the_compiler_comes_when_it_is_asked_for_and_is_itself_after_the_run(
    tmp_path: Path, asks: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-c", CALLER, str(program)]
    environ = os.environ | {"ASKS": asks, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
