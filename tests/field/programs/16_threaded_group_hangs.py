# Ranks as threads of one process, as PyTorch's own tests of DTensor and FSDP2 have them.
# run: kernbench torchrun {file}
# expect: T 0 3\.0
# expect: T 1 3\.0
# expect: joined

import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

_install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
store = dist.HashStore()


def go(r):
    dist.init_process_group("threaded", rank=r, world_size=2, store=store)
    x = torch.ones(2) * (r + 1)
    dist.all_reduce(x)
    print("T", r, x[0].item(), flush=True)


threads = [threading.Thread(target=go, args=(r,)) for r in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
print("joined")
