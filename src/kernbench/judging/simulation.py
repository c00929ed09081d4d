"""Running a function inside of a simulated PyTorch process of a machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kernbench.hardware import load_machine
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge import run_torchrun

_T = TypeVar("_T")
_WORK: dict[str, Callable[[], None]] = {}
"""What programs that are being started will call, by their argument."""
_PROGRAM = Path(__file__).with_name("program.py")


def call_work(name: str) -> None:
    """Do the work of a name; the program calls it."""
    _WORK[name]()


def in_simulation(
    work: Callable[[RuntimeContext], _T], machine: str, *, data: bool = True, check: bool = False
) -> _T:
    """Return what ``work`` returns inside of a program of one rank.

    Raises:
        Exception: What ``work`` raised.
    """
    return on_ranks(lambda context, _: work(context), machine, 1, data=data, check=check)[0]


def on_ranks(
    work: Callable[[RuntimeContext, int], _T],
    machine: str,
    ranks: int,
    *,
    data: bool = True,
    check: bool = False,
) -> list[_T]:
    """Return what ``work`` returns on each rank of a program, several of them in one group.

    Raises:
        Exception: What ``work`` raised first.
    """
    context = RuntimeContext(
        machine=load_machine(machine, None if ranks == 1 else ranks), data=data, check=check
    )
    results: dict[int, _T] = {}
    errors: list[BaseException] = []

    def call() -> None:
        try:
            rank = int(os.environ["RANK"])
            if ranks > 1:
                import torch.distributed as dist

                dist.init_process_group("nccl")
            results[rank] = work(context, rank)
        except Exception as error:
            errors.append(error)
            raise

    name = str(id(call))
    _WORK[name] = call
    code = compile(_PROGRAM.read_text(), str(_PROGRAM), "exec")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_torchrun(context, _PROGRAM, code, [str(_PROGRAM), name], ranks)
    except BaseException:
        if errors:
            raise errors[0] from None
        raise
    finally:
        del _WORK[name]
    return [results[rank] for rank in range(ranks)]
