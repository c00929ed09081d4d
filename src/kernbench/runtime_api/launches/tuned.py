"""The first launch after a tuner's benchmarks: would it have found what its candidates left?

A GPU runs each candidate many times on the arguments themselves. Here benchmarks touch no data, so
a kernel that adds to what is there, or changes it in place, has the right numbers. Under the
sanitizer it is run once more, on copies: what changes then would have changed before (ADR-0233).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kernbench.errors import KernbenchError, TunedInPlaceError
from kernbench.replay import PointerArg

if TYPE_CHECKING:
    from kernbench.runtime_api.launches.kernel_plan import KernelPlan
    from kernbench.runtime_api.launches.live_launch import LivePlan, Scratch


_T = TypeVar("_T")


def run_twice(
    execute: Callable[[], _T],
    again: Callable[[Scratch], object],
    scratch: Scratch,
    plan: KernelPlan | LivePlan,
    params: list[Any],
    kept: frozenset[str],
) -> _T:
    """Run a launch, and then ``again`` on copies, ``scratch``; return what the first run returned.

    ``kept`` are the arguments that the tuner restores or sets to zero before each candidate.

    Raises:
        TunedInPlaceError: The second run writes something else; names the argument.
    """
    if any(op.name == "tt.print" for op in plan.kernel.binary.module.walk()):
        # It would print twice.
        return execute()
    names = plan.kernel.param_names
    buffers = {
        index: (params[index].buffer, writes)
        for index, _, _, writes in plan.pointers
        if isinstance(params[index], PointerArg)
    }
    restored = [
        (buffer, buffer.bytes.copy())
        for index, (buffer, _) in buffers.items()
        if names[index] in kept
    ]
    result = execute()
    for buffer, before in restored:
        scratch.copy(buffer).bytes[:] = before
    try:
        again(scratch)
    except KernbenchError as error:
        raise TunedInPlaceError(_in_words(plan, "", f"fails: {error}")) from error
    for index, (buffer, writes) in buffers.items():
        differ = np.flatnonzero(scratch.copy(buffer).bytes != buffer.bytes)
        if writes and len(differ):
            what = f"changes byte {int(differ[0])} of {buffer.label} once more"
            unkept = [
                names[other]
                for other, (item, is_written) in buffers.items()
                if is_written and not any(item is kept for kept, _ in restored)
            ]
            # One that is restored follows another that is not.
            changed = names[index] if names[index] in unkept else " and ".join(unkept)
            raise TunedInPlaceError(_in_words(plan, changed, what))
    return result


def _in_words(plan: KernelPlan | LivePlan, name: str, what: str) -> str:
    kernel = plan.kernel
    listed = f"list {name}" if name else "list what it must find as it was"
    argument = f" (argument {name})" if name else ""
    return (
        f"kernel {kernel.name} at {kernel.binary.module.kernel.line} was tuned by triton.autotune, "
        f"and a second run of it {what}{argument}; a GPU has run every candidate many times before "
        f"this launch: {listed} in restore_value= or reset_to_zero="
    )
