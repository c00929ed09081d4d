# A wrong dst, splits that differ, a short scatter list, a missing rendezvous: the rank that is wrong is named.
# run: python {file}
# never: FAILS
# expect: holds: dst
# expect: holds: rendezvous

from pathlib import Path

from common import claim, kernbench

Path("t.py").write_text("""\
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl"); r = dist.get_rank(); n = 4; torch.cuda.set_device(r); x = torch.ones(8, device="cuda")
c = sys.argv[1]; o = torch.empty(8, device="cuda")
if c == "dst": dist.send(x, 9) if r == 0 else dist.recv(x, 0)
if c == "split": dist.all_to_all_single(o, x, [2] * 4, [3, 1, 2, 2] if r == 0 else [2] * 4)
if c == "scatter": dist.scatter(o, [x] * 3 if r == 0 else None, src=0)
""")
for case in ("dst", "split", "scatter"):
    status, said = kernbench("torchrun", "--nproc-per-node", "4", "t.py", case)
    error = next((line for line in said.splitlines() if line.startswith("error")), said)
    right = (
        status == 1 and "rank 0" in said and "bug of ours" not in said and "raised at" not in said
    )
    claim(case, right, error)
Path("s.py").write_text("""\
RANKS = 4
def w(r, torch):
    torch.ahbm.set_device(r); torch.distributed.init_process_group()
    y = torch.distributed.symmetric_memory.empty(64, dtype="f32")
    if r != 1: torch.distributed.symmetric_memory.rendezvous(y)
    torch.distributed.barrier()
def run(torch): torch.multiprocessing.spawn(w, args=(torch,), nprocs=4)
""")
status, said = kernbench("run", "s.py")
claim("rendezvous", status == 1 and "rank 1" in said and "bug of ours" not in said, said)
