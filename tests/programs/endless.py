"""A bench that says when it is ready, and never ends."""


def run(torch):
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.world_size)


def worker(rank, torch):
    print("ready", flush=True)
    while True:
        torch.ones(4)
        torch.ahbm.synchronize()
