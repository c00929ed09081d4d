"""Programs about what a process assigns to shared modules, each a function.

python assigned_in_parts.py CASE [ARGUMENTS]
"""

import _thread
import builtins
import importlib
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterDataPipe, functional_datapipe


def library_that_takes_a_function(folder):
    """A library that is imported once for all, by a rank that has patched what it takes."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    F.relu = lambda x: x * 0 + 100 + rank
    np.float_of_old = float
    # The first rank imports it for all.
    library = importlib.import_module("a_taking_library")
    dist.barrier()
    result = [
        library.relu(torch.ones(1)).item(),
        library.kind.__name__,
        F.relu(torch.ones(1)).item(),
    ]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(result))


def library_that_fills_its_tables(folder):
    """A library that is imported once for all, and asked by one rank after the other."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    library = importlib.import_module("a_filling_library")
    for asking in range(2):
        dist.barrier()
        if rank == asking:
            Path(folder, f"rank{rank}.json").write_text(json.dumps(library.known()))
    dist.barrier()


def functions_that_the_simulation_calls(folder):
    """Builtins that both the program and whoever runs it call."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    plain, threads, mine = builtins.len, set(), _thread.get_ident()

    def counted(x):
        threads.add(_thread.get_ident())
        return plain(x)

    builtins.len = counted
    for _ in range(3):
        len([])
        dist.barrier()
        threading.Event().wait(0.01)
    builtins.len = plain
    Path(folder, f"rank{rank}.json").write_text(
        json.dumps(sorted(thread == mine for thread in threads))
    )


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([F.kb_inherited(), getattr(F, "kb_of_worker", -1)])


def set_in_worker(number):
    F.kb_of_worker = number + 20
    F.kb_inherited = lambda plain=F.kb_inherited: plain() + 1


def workers_of_a_loader(folder):
    F.kb_inherited = lambda: 5
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, worker_init_fn=set_in_worker)
    seen = [batch.tolist() for batch in loader]
    result = [seen, hasattr(F, "kb_of_worker"), F.kb_inherited()]
    Path(folder, "rank0.json").write_text(json.dumps(result))


def of_a_spawned_one(rank, folder):
    register("spawned")
    result = [
        hasattr(F, "kb_of_parent"),
        hasattr(F, "kb_at_import"),
        IterDataPipe.functions.keys() >= {"kb_spawned"},
    ]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(result))


def register(name):
    @functional_datapipe(f"kb_{name}")
    class Pipe(IterDataPipe):
        pass


# Each process that imports this registers it once.
register("at_import")
F.kb_at_import = True


def spawned_ones_begin_anew(folder):
    F.kb_of_parent = True
    register("spawned")
    mp.spawn(of_a_spawned_one, (folder,), nprocs=2)
    assert F.kb_of_parent


def several_errors():
    """Assignments fail as they do without anybody who is told of them."""
    dist.init_process_group("gloo")
    for code in ("int.kb = 1", "del json.kb", "del Dataset.kb", "json.__dict__ = {}"):
        try:
            exec(code)
        except (AttributeError, TypeError) as error:
            print(f"{type(error).__name__}: {error}")
    group = torch._C._distributed_c10d.Work
    group.kb = 3
    assert group.kb == 3
    del group.kb


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
