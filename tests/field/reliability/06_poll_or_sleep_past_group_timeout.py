# A poll or a sleep while the others wait ends when the group's timeout has passed in simulated time.
# run: python {file}
# never: FAILS
# expect: holds: poll ends
# expect: holds: sleep ends

from pathlib import Path

from common import claim, kernbench

Path("t.py").write_text("""\
import sys, time, datetime, torch, torch.distributed as dist
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=30)); r = dist.get_rank(); torch.cuda.set_device(r)
x = torch.ones(8, device="cuda")
if sys.argv[1] == "poll":
    w = dist.all_reduce(x, async_op=True) if r else None      # rank 0 never comes
    while r and not w.is_completed(): pass
else:
    if r == 0:
        while True: time.sleep(1)
    dist.barrier()
""")
for case in ("poll", "sleep"):
    status, said = kernbench("torchrun", "--nproc-per-node", "4", "t.py", case, seconds=60)
    print(said)
    claim(
        f"{case} ends", status == 1 and "rank 0" in said and "t.py" in said, (status, said[-400:])
    )
