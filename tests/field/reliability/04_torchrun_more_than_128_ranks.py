# More ranks of PyTorch than its device index can name: one error before the start.
# run: python {file}
# never: FAILS
# expect: holds: refused

from pathlib import Path

from common import claim, kernbench

Path("t.py").write_text(
    "import torch, torch.distributed as dist\n"
    "dist.init_process_group('nccl'); r = dist.get_rank(); torch.cuda.set_device(r)\n"
    "x = torch.ones(8, device='cuda'); dist.all_reduce(x); print('rank', r)\n"
)
status, said = kernbench(
    "torchrun", "--no-data", "--machine", "ahbm:300", "--nproc-per-node", "300", "t.py"
)
claim("refused", status != 0 and "128" in said and "rank" not in said.split("error")[0], said[:300])
status, said = kernbench(
    "torchrun", "--no-data", "--machine", "ahbm:128", "--nproc-per-node", "128", "t.py"
)
claim("128 ranks run", status == 0 and "rank 127" in said, said[-300:])
