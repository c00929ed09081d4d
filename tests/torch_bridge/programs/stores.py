"""A TCPStore whose master waits for MORE workers than there are ranks.

python stores.py MORE
"""

import sys
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
count = size + int(sys.argv[1])
store = dist.TCPStore("localhost", 29777, count, rank == 0, timeout=timedelta(seconds=20))
store.set(f"from {rank}", str(rank))
assert [store.get(f"from {index}") for index in range(size)] == [b"0", b"1", b"2"]
# A store of its own needs no other process.
alone = dist.TCPStore("localhost", 29800 + rank, 1, True)
alone.set("key", "value")
late = dist.TCPStore("localhost", 29777, wait_for_workers=False)
assert late.get("from 1") == b"1"
