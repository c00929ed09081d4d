"""The cases of ``speed_check``: what each part of the simulator costs, in less than a second each.

Question: has a change made launches, rank switches, collectives, replay, compiling or operations of
PyTorch programs slower? Device: ``ahbm``. No numbers of others; they are compared with themselves.
"""

from __future__ import annotations

import heapq
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import triton
import triton.language as tl
from speed_check import Measured

import kernbench
from kernbench import ops
from kernbench.collectives import build
from kernbench.hardware import load_machine
from kernbench.kernel_ir import evaluate, parse_module
from kernbench.links import Asked, Network
from kernbench.replay import run_collective
from kernbench.tp import ColumnParallelLinear, RowParallelLinear, initialize_model_parallel

os.environ["KERNBENCH_CHECK"] = "0"
Work = Callable[[], object]
ROUNDS = 15


class _Record:
    """An object of the reference loop."""

    def __init__(self, number: int, label: str) -> None:
        self.number = number
        self.label = label
        self.callbacks: list[Callable[[int], None]] = []

    def end(self, when: int) -> None:
        for callback in self.callbacks:
            callback(when)


def plain_python() -> None:
    """Do for some milliseconds what a simulator does: objects, look-ups, calls, a heap."""
    queue: list[tuple[int, int]] = []
    known: dict[tuple[int, str], _Record] = {}
    ended: list[int] = []
    for number in range(2000):
        record = _Record(number, "x")
        record.callbacks.append(ended.append)
        known[number, record.label] = record
        heapq.heappush(queue, (number * 7 % 1000, number))
    while queue:
        when, number = heapq.heappop(queue)
        known.pop((number, "x")).end(when)


class _Counter:
    """Counts the bytecodes that greenlets of this thread execute."""

    def __init__(self) -> None:
        self.bytecodes = 0
        # Not when it begins: other greenlets may be counting then.
        self._before = sys.gettrace()

    @contextmanager
    def counting(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(self._before)

    def _enter(self, frame: Any, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: Any, event: str, arg: object) -> Any:
        self.bytecodes += event == "opcode"
        return self._step


def seconds(work: Work) -> float:
    start = process_time()
    work()
    return process_time() - start


def warm_seconds(reference: Work) -> float:
    """Return what a reference takes that ran just before: the work has emptied the caches."""
    reference()
    return seconds(reference)


def in_turns(work: Work, reference: Work = plain_python, counted: bool = True) -> Measured:
    """Return what a piece of work takes over its reference; both have run before."""
    work()
    reference()
    pairs = [(seconds(work), warm_seconds(reference)) for _ in range(ROUNDS)]
    counter = _Counter()
    if counted:
        with counter.counting():
            work()
    return Measured(
        min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs), counter.bytecodes
    )


@triton.jit
def scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


def warm_launches() -> Measured:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x, y = torch.zeros(4096, dtype="f32"), torch.empty(4096, dtype="f32")

        def work() -> None:
            for _ in range(200):
                scale[(4,)](x, y, 4096, 2.0, BLOCK=1024)

        return in_turns(work)


def warm_operations() -> Measured:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        x, w = torch.zeros((64, 1024), dtype="f32"), torch.zeros((1024, 64), dtype="f32")

        def work() -> None:
            for _ in range(100):
                ops.relu(ops.matmul(x, w))

        return in_turns(work)


def rank_switches() -> Measured:
    def worker(rank: int, torch: Any, waits: int = 250) -> None:
        for _ in range(waits):
            torch.wait(torch.run.simulation.timer(1000))

    def work() -> None:
        with kernbench.RuntimeContext(machine="ahbm:64", data=False) as torch:
            torch.multiprocessing.spawn(worker, args=(torch,), nprocs=64)

    return in_turns(work, counted=False)


HIDDEN, FFN, TOKENS, MLP_RANKS, MLP_LAYERS = 1024, 4096, 64, 64, 2


def plain_mlp() -> Work:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TOKENS, HIDDEN), dtype=np.float32)
    w1, w2 = (
        [rng.standard_normal(shape, dtype=np.float32) for _ in range(MLP_RANKS)]
        for shape in ((HIDDEN, FFN // MLP_RANKS), (FFN // MLP_RANKS, HIDDEN))
    )
    out = np.empty((MLP_RANKS, TOKENS, HIDDEN), dtype=np.float32)

    def work() -> None:
        for rank in range(MLP_RANKS):
            np.matmul(np.maximum(x @ w1[rank], 0), w2[rank], out=out[rank])
        total = out[0].copy()
        for rank in range(1, MLP_RANKS):
            total += out[rank]
        out[:] = total

    return work


def tp_mlp(data: bool) -> Measured:
    """With data over the plain loop, without over plain Python; the host's phase is in both."""
    reference = plain_mlp() if data else plain_python
    pairs: list[tuple[float, float]] = []
    counter = _Counter()

    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        initialize_model_parallel(MLP_RANKS)
        x = torch.zeros((TOKENS, HIDDEN), dtype="f32")
        fc1 = ColumnParallelLinear(HIDDEN, FFN, dtype="f32")
        fc2 = RowParallelLinear(FFN, HIDDEN, dtype="f32")

        def layers() -> Any:
            for _ in range(MLP_LAYERS):
                y = fc2(ops.relu(fc1(x)))
            return y

        for number in range(ROUNDS + 2):
            torch.distributed.barrier()
            start = process_time()
            y = layers()
            torch.distributed.barrier()
            if rank == 0:
                if data:
                    y.numpy()
                taken = process_time() - start
                # The first ones compile, and fill the memos.
                if number > 1:
                    pairs.append((taken, MLP_LAYERS * warm_seconds(reference)))
        with counter.counting():
            layers()

    with kernbench.RuntimeContext(f"ahbm:{MLP_RANKS}", ranks=MLP_RANKS, data=data) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=MLP_RANKS)
    assert sys.gettrace() is None, "tracing goes on: what comes next would be slow"
    least = [min(pair[place] for pair in pairs) for place in (0, 1)]
    return Measured(least[0] / least[1], counter.bytecodes)


def collective_data(algorithm: str) -> Measured:
    schedule = build("all_reduce", algorithm, 32, 64 * 1024, 4)
    # Sums of sums of other numbers would soon overflow.
    works = [np.zeros(64 * 1024, dtype=np.float32) for _ in range(32)]

    def reference() -> None:
        total = works[0].copy()
        for work in works[1:]:
            total += work
        for work in works:
            work[:] = total

    return in_turns(lambda: run_collective(schedule, "sum", works), reference)


def chosen_collective() -> Measured:
    machine, asked, sips = (
        load_machine("ahbm:128"),
        Asked("all_reduce", 128, 1 << 20, 4),
        range(128),
    )

    def work() -> None:
        network = Network(machine)
        choice = network.selector.choose(asked, tuple(sips))
        network.run(choice.build(asked), tuple(sips), (0,) * 128, choice.protocol)

    return in_turns(work)


def product_with_data() -> Measured:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((512, 512)).astype(np.float16) for _ in range(2))
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=True) as torch:
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        return in_turns(
            lambda: ops.matmul(x, y).numpy(),
            lambda: (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16),
        )


def softmax_with_data() -> Measured:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((512, 1024)).astype(np.float32)

    def reference() -> None:
        powers = np.exp(a - a.max(1, keepdims=True))
        powers /= powers.sum(1, keepdims=True)

    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=True) as torch:
        x = torch.from_numpy(a)
        return in_turns(lambda: ops.softmax(x).numpy(), reference)


def compiled_kernel() -> Measured:
    """From the text of TTIR to commands."""
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=False) as torch:
        compiled = scale.warmup(
            torch.empty(4096), torch.empty(4096), 4096, 2.0, BLOCK=1024, grid=(4,)
        )
        text = compiled.asm["ttir"]
    module = parse_module(text)
    ints = {
        param.index: 1 << 20
        for param in module.kernel.params
        if not param.is_pointer and not (param.dtype and param.dtype.is_floating_point)
    }
    options = {"num_warps": 4, "num_stages": 2}

    def work() -> None:
        for _ in range(10):
            evaluate(parse_module(text), (1024, 1, 1), ints, **options)

    return in_turns(work)


OPERATIONS = """
import json, sys, torch
check = torch._speed_check
x, y = (torch.ones(8, 8, device="cuda") for _ in "xy")
def work():
    for _ in range(300):
        torch.mm(x + y, y)
    torch.cuda.synchronize()
check(work)
"""


def torch_operations() -> Measured:
    import torch

    from kernbench.torch_bridge import run_torchrun

    result: list[Measured] = []
    # Libraries are shared with the program, whose own clocks are those of the modeled host.
    vars(torch)["_speed_check"] = lambda work: result.append(in_turns(work))
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "program.py"
            path.write_text(OPERATIONS)
            with kernbench.RuntimeContext(machine="ahbm", ranks=1) as context:
                code = compile(OPERATIONS, str(path), "exec")
                run_torchrun(context, path, code, [str(path)], 1)
    finally:
        del torch._speed_check
    return result[0]


CASES: dict[str, Callable[[], Measured]] = {
    "warm launches": warm_launches,
    "warm operations of kernbench.ops": warm_operations,
    "rank switches, 64 ranks": rank_switches,
    "TP MLP, 64 ranks, no data": lambda: tp_mlp(data=False),
    "TP MLP, 64 ranks, with data": lambda: tp_mlp(data=True),
    "data of an all-reduce by two shots": lambda: collective_data("two_shot"),
    "data of an all-reduce by a ring": lambda: collective_data("ring"),
    "all-reduce of 128 ranks, chosen and timed": chosen_collective,
    "float16 product 512^3 with data": product_with_data,
    "softmax 512 x 1024 with data": softmax_with_data,
    "a kernel from TTIR to commands": compiled_kernel,
    "operations of a PyTorch program": torch_operations,
}
UNAVAILABLE: dict[str, str] = {}
"""Cases that cannot run here, and why."""
if importlib.util.find_spec("torch") is None:
    UNAVAILABLE["operations of a PyTorch program"] = "there is no torch"
    del CASES["operations of a PyTorch program"]


def run_case(name: str) -> Measured:
    return CASES[name]()
