"""Starting all ranks again when one has failed, as torchrun's elastic agent does (ADR-0176)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernbench.clock import CtrlC
from kernbench.errors import KernbenchError, RankFailedError
from kernbench.runtime_api.front.context import RuntimeContext
from kernbench.runtime_api.front.multiprocessing import SpawnException

T = TypeVar("T")
_PS_PER_S = 10**12


def with_restarts(context: RuntimeContext, work: Callable[[int], T], most: int) -> T:
    """Return what ``work(number)`` returns, called again while ranks fail, ``most`` times at most.

    ``number`` counts the restarts so far. Mistakes that kernbench finds in a program are raised at
    once: they would be there again.
    """
    run = context.run
    for number in range(most):
        try:
            return work(number)
        except (Exception, SystemExit) as error:
            failures = _failures(error)
            if failures is None:
                raise
            said = "; ".join(failures)
        failed_ps = run.simulation.now_ps
        why = f"restart {number + 1} of {most}"
        run.start_again(why, failed_ps)
        restarted_s = run.simulation.now_ps / _PS_PER_S
        line = f"{why} at {restarted_s:.6g} s, as of {failed_ps / _PS_PER_S:.6g} s: {said}"
        run.remarks.append(lambda line=line: [line])  # type: ignore[misc]
    return work(most)


def _failures(error: BaseException) -> list[str] | None:
    """Return what has failed if an agent would start the program again, else None."""
    if isinstance(error, SystemExit):
        return None if error.code in (None, 0) else [f"the program called exit({error.code!r})"]
    if isinstance(error, CtrlC):
        return None
    if not isinstance(error, SpawnException):
        if isinstance(error, KernbenchError):
            return None
        return [f"the program raised {type(error).__name__}: {error}"]
    lines = []
    for rank, exception in error.errors.items():
        if isinstance(exception, RankFailedError):
            lines.append(str(exception).partition(";")[0])
        elif isinstance(exception, KernbenchError):
            return None
        else:
            lines.append(f"rank {rank} raised {type(exception).__name__}: {exception}")
    return lines
