"""Raise errors of every kind where PyTorch calls code of the user, and save what comes out."""

import contextlib
import io
import json
import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Own(BaseException):
    """What no library knows."""


KINDS: list[Any] = [
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    RuntimeError,
    Own,
]
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
w = torch.ones(4, device=device, requires_grad=True)
kind = RuntimeError


def boom(*args, **kwargs):
    raise kind("x")


def nothing(x):
    return x


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        boom()


class Dispatch(TorchDispatchMode):
    __torch_dispatch__ = boom


class Function(TorchFunctionMode):
    __torch_function__ = boom


class Items:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        boom()


@torch.library.custom_op("raising::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    boom()


def tensor_hook():
    x = w * 1
    x.register_hook(boom)
    x.sum().backward()


def module_hook():
    module = torch.nn.Linear(4, 4, device=device)
    module.register_forward_hook(boom)
    module(w)


def recomputed():
    calls = []

    def square(x):
        calls.append(1)
        if len(calls) == 2:
            boom()
        return x * x

    checkpoint(square, w, use_reentrant=False).sum().backward()


def dispatch():
    with Dispatch():
        w + 1


def function():
    with Function():
        w + 1


def saved():
    with torch.autograd.graph.saved_tensors_hooks(boom, nothing):
        (w * w).sum()


def executor():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(boom).result()


def load():
    file = io.BytesIO()
    torch.save(w, file)
    file.seek(0)
    torch.load(file, map_location=boom)


def cleaning_up():
    try:
        dist.barrier()
    finally:
        boom()


def scheduler():
    torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([w], lr=1.0), boom)


def future():
    dist.all_reduce(torch.ones(4, device=device), async_op=True).get_future().then(boom).wait()


def thread():
    item = threading.Thread(target=boom)
    hook, threading.excepthook = threading.excepthook, threading.__excepthook__
    item.start()
    item.join()
    threading.excepthook = hook


def process():
    item = multiprocessing.get_context("fork").Process(target=boom)
    item.start()
    item.join()
    return item.exitcode


PLACES = {
    "backward": lambda: Backward.apply(w).sum().backward(),
    "cleaning up": cleaning_up,
    "custom op": lambda: op(w),
    "dispatch": dispatch,
    "executor": executor,
    "function": function,
    "future": future,
    "items": lambda: list(DataLoader(Items())),
    "load": load,
    "module hook": module_hook,
    "process": process,
    "recomputed": recomputed,
    "saved": saved,
    "scheduler": scheduler,
    "step": lambda: torch.optim.SGD([w], lr=1.0).step(boom),
    "tensor hook": tensor_hook,
    "thread": thread,
}
result: dict[str, Any] = {}
for place, call in PLACES.items():
    for kind in KINDS:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                out = f"returns {call()}"
            except BaseException as error:
                out = type(error).__name__
        # A thread ends alone, and says of what.
        if place == "thread":
            out += f", prints {kind.__name__}" * (f"{kind.__name__}: x" in said.getvalue())
        result[f"{kind.__name__} in {place}"] = out
path = Path(sys.argv[1]) / f"rank{dist.get_rank()}.json"
path.write_text(json.dumps(result))
dist.destroy_process_group()
