"""Programs about what libraries keep for a process, each a function.

python library_state.py CASE [ARGUMENTS]
"""

import importlib
import io
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.nn.modules.module import register_module_forward_hook


def classes_that_remember() -> None:
    state = importlib.import_module("accelerate.state")
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    first = state.PartialState()
    dist.barrier()
    assert first.rank == state.PartialState().rank == rank


def locks_of_a_library() -> None:
    library = importlib.import_module("a_locking_library")
    dist.init_process_group("nccl")
    for lock in library.locks:
        with lock:
            dist.barrier()
            seen: list[bool] = []
            others = threading.Thread(target=try_for_a_second, args=(lock, seen))
            others.start()
            others.join()
            assert seen == [False]
        assert lock.acquire(blocking=False)
        lock.release()
    condition = threading.Condition(library.locks[1])
    with condition:
        assert not condition.wait(timeout=1)
    own = threading.Lock()
    assert isinstance(own, threading.Lock)


def bars() -> None:
    tqdm = importlib.import_module("tqdm").tqdm
    dist.init_process_group("nccl")
    # While every rank holds its own.
    assert all(lock.acquire(blocking=False) for lock in tqdm.get_lock().locks)
    dist.barrier()
    tqdm.get_lock().release()
    with tqdm(total=2, file=io.StringIO()) as bar:
        dist.barrier()
        # Each is the first of its process.
        assert bar.pos == 0
        assert list(tqdm._instances) == [bar]
        dist.barrier()


def try_for_a_second(lock: Any, seen: list[bool]) -> None:
    seen.append(lock.acquire(timeout=1))


def threads_of_a_library() -> None:
    library = importlib.import_module("a_locking_library")
    assert library.event.wait(timeout=1)
    assert library.seen == ["thread"]
    time.sleep(2)
    assert library.seen == ["thread", "timer"]


def hooks_of_all_modules() -> None:
    dist.init_process_group("nccl")
    rank, seen = dist.get_rank(), []
    model = torch.nn.Linear(2, 2)
    hook = None
    if rank == 0:
        hook = register_module_forward_hook(lambda module, value, result: seen.append(module))
    dist.barrier()
    model(torch.ones(2))
    dist.barrier()
    if hook is not None:
        hook.remove()
    model(torch.ones(2))
    assert seen == ([model] if rank == 0 else [])


def checkpoints_of_fsdp1(folder: str) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    torch.manual_seed(0)
    model = FullyShardedDataParallel(torch.nn.Linear(8, 6).cuda(), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    wrapper = FullyShardedDataParallel

    def step() -> list[torch.Tensor]:
        model(torch.ones(2, 8, device="cuda")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    def state() -> dict[str, Any]:
        with wrapper.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            return {
                "model": model.state_dict(),
                "optim": wrapper.optim_state_dict(model, optimizer),
            }

    before = step()
    saved = state()
    for item in saved["model"].values():
        assert item.device == torch.device("cuda", dist.get_rank())
        assert not item.is_meta
    dcp.save(saved, checkpoint_id=folder)
    after = step()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    result = state()
    dcp.load(result, checkpoint_id=folder)
    with wrapper.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        model.load_state_dict(result["model"])
        optimizer.load_state_dict(
            wrapper.optim_state_dict_to_load(model, optimizer, result["optim"])
        )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, step(), strict=True))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
