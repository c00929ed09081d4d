"""Ranks that end others: only the one that raises calls its handlers.

python ending_others.py PATH
"""

import atexit
import os
import sys
from pathlib import Path

import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
atexit.register(lambda: Path(f"{sys.argv[1]}{rank}").touch())
if rank == 2:
    os._exit(3)
if rank == 1:
    raise ValueError("of rank 1")
dist.barrier()
