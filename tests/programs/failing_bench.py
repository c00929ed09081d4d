"""Does it add up?"""

import os
from pathlib import Path


class Speechless(Exception):
    def __str__(self):
        return 1 / 0


def run(torch, size: int = 4, how: str = "fine"):
    print("the bench speaks")
    x = torch.ones(size)
    if how == "check":
        torch.testing.assert_close(x, torch.full(size, 3.0))
    if how == "assert":
        assert x.tolist() == [3.0] * size, "ones are not threes"
    if how == "error":
        torch.reshape_everything(x)
    if how in ("rank", "ctrl-c"):
        torch.multiprocessing.spawn(worker, args=(torch, how), nprocs=torch.world_size)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "speechless":
        raise Speechless
    if how == "base":
        raise GeneratorExit("of no kind of Exception")
    if how == "homeless":
        Path("home").mkdir()
        os.chdir("home")
        Path("../home").rmdir()
        x[9]
    if how == "exit":
        raise SystemExit(7)


def worker(rank, torch, how):
    if rank == 1:
        raise KeyboardInterrupt if how == "ctrl-c" else ValueError("bad luck")
    torch.distributed.init_process_group()
    torch.distributed.barrier()
