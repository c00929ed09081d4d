"""A bench of which one rank stops in a debugger."""


def run(torch):
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.world_size)


def worker(rank, torch):
    torch.distributed.init_process_group()
    x = torch.full((4,), float(rank + 1))
    torch.distributed.all_reduce(x)
    if rank == 1:
        result = 10 * rank
        breakpoint()
        result += 1
    torch.distributed.all_reduce(x)
    print("rank", rank, "ends with", x.tolist()[0])
