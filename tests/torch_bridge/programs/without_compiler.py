"""A program of FSDP that asks for PyTorch's compiler at its end, or never.

python without_compiler.py [asks]
"""

import sys

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
if sys.argv[1:]:
    dist.barrier()
    import torch._dynamo.utils
    from torch._dynamo import is_compiling

    assert torch._dynamo is sys.modules["torch._dynamo"]
    assert torch._dynamo.__file__
    assert not is_compiling()
    optimizer.step()
