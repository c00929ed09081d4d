"""What a program sets for its process while other ranks run: switches, warnings, signals.

python settings.py FOLDER CASE; each rank writes what it has seen to FOLDER/rank<N>.json
"""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._tensor_str import printoptions
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def meet() -> None:
    dist.all_reduce(torch.ones(1, device=DEVICE, dtype=torch.float32))


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def precise() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def blocks() -> list[tuple[str, AbstractContextManager[object], Callable[[], object]]]:
    """What is set for a while, and what shows it."""
    rank = dist.get_rank()
    return [
        (
            "cudnn",
            torch.backends.cudnn.flags(enabled=False, benchmark=rank == 0, allow_tf32=False),
            lambda: [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark],
        ),
        ("deterministic", deterministic(), torch.are_deterministic_algorithms_enabled),
        ("precision", precise(), lambda: [torch.backends.cuda.matmul.allow_tf32]),
        (
            "anomalies",
            torch.autograd.detect_anomaly(check_nan=rank == 0),
            lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        ),
        ("printing", printoptions(precision=rank + 1), lambda: repr(torch.tensor([1.23456]))),
        (
            "checkpoints",
            checkpoint.set_checkpoint_early_stop(rank == 0),
            lambda: checkpoint._enable_checkpoint_early_stop,
        ),
    ]


def for_a_while() -> dict[str, Any]:
    """Ranks enter and leave blocks at different times, as they do where collectives are in them."""
    seen: dict[str, Any] = {}
    rank = dist.get_rank()
    warnings.simplefilter("ignore")
    for name, block, shows in blocks():
        before = shows()
        with block:
            meet()
            inside = shows()
            if rank == 1:
                meet()
        if rank == 0:
            meet()
        meet()
        seen[name] = [before, inside, shows()]
    x = distribute_tensor(torch.ones(4, device=DEVICE), init_device_mesh(DEVICE, (2,)), [Shard(0)])
    with implicit_replication():
        meet()
        if rank == 1:
            meet()
        seen["replication"] = (x + torch.ones(4, device=DEVICE)).to_local().sum().item()
    if rank == 0:
        meet()
    return seen


def of_one_rank() -> dict[str, Any]:
    """One rank sets what the others must not find."""
    if dist.get_rank() == 0:
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.set_warn_always(True)
        torch.set_printoptions(precision=1)
        sys.path.insert(0, "of rank 0")
    meet()
    return {
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "precision": torch.get_float32_matmul_precision(),
        "sums": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "warns": torch.is_warn_always_enabled(),
        "printed": repr(torch.tensor([1.23456])),
        "path": "of rank 0" in sys.path,
    }


def recorded_warnings() -> dict[str, Any]:
    rank = dist.get_rank()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meet()
        warnings.warn(f"of rank {rank}", stacklevel=1)
        meet()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if rank == 0 else "ignore")
        meet()
        try:
            warnings.warn("raised on rank 0", stacklevel=1)
            has_raised = False
        except UserWarning:
            has_raised = True
        meet()
    return {"caught": [str(item.message) for item in caught], "raised": has_raised}


class LateError(Exception):
    """The alarm rang."""


def signals() -> dict[str, Any]:
    seen: list[Any] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(signal.Signals(number).name)

    def give_up(number: int, frame: FrameType | None) -> None:
        raise LateError

    def limited(work: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            work()
            seen.append("in time")
        except LateError:
            seen.append("late")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def read_clocks() -> None:
        start = time.monotonic()
        while time.monotonic() < start + 1:
            pass

    rank = dist.get_rank()
    seen.append(str(signal.signal(signal.SIGUSR1, note)))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    meet()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), 0)
    os.kill(os.getpid(), signal.SIGWINCH)
    signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    start = time.monotonic()
    time.sleep(0.5)
    seen.append(round(time.monotonic() - start, 1))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.alarm(10)
    time.sleep(0.2)
    seen.append(signal.alarm(0))
    signal.signal(signal.SIGALRM, give_up)
    for work in (lambda: time.sleep(1), read_clocks, meet):
        limited(work)
    for number, handler in ((signal.SIGKILL, note), (signal.SIGUSR1, 3), (999, note)):
        try:
            signal.signal(number, handler)
        except (OSError, TypeError, ValueError) as refusal:
            seen.append(f"{type(refusal).__name__}: {refusal}")
    return {"seen": seen}


def main() -> None:
    folder, case = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    rank = dist.get_rank()
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    result = globals()[case]()
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    meet()


if __name__ == "__main__":
    main()
