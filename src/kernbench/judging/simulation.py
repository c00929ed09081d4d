"""Running a function inside of a simulated PyTorch process of a machine."""

from __future__ import annotations

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
    work: Callable[[RuntimeContext], _T],
    machine: str,
    *,
    ranks: int = 1,
    data: bool = True,
    check: bool = False,
) -> _T:
    """Return what ``work`` returns (of rank 0) when each rank of a program calls it.

    Raises:
        Exception: What ``work`` raised.
    """
    context = RuntimeContext(
        machine=load_machine(machine, None if ranks == 1 else ranks), data=data, check=check
    )
    results: list[_T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work(context))
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
    return results[0]
