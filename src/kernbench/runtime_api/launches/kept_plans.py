"""Which plans of launches are kept: those used lately, up to a limit of memory (ADR-0080)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kernbench.commands import KernelTrace, Predicate, Separable, field_names

if TYPE_CHECKING:
    from kernbench.runtime_api.launches.kernel_plan import KernelEntry, KernelPlan
    from kernbench.runtime_api.launches.live_launch import LivePlan

MOST_KEPT_BYTES = 256 << 20
LIVE_PLAN_BYTES = 1_000
"""About what a plan of a kernel that decides by data takes, in bytes."""
_RECORD_BYTES = 500
"""About what a command, an operand or a term takes besides its arrays, in bytes."""


class KeptPlans:
    """The plans of all kernels of an engine, in the order in which they were made."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._plans: OrderedDict[KernelPlan | LivePlan, tuple[KernelEntry, Any]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, entry: KernelEntry, key: Any, plan: KernelPlan | LivePlan) -> None:
        """Keep a plan under a key of its kernel, for as long as there is room."""
        entry.plans[key] = plan
        self._plans[plan] = entry, key
        self.grow(plan.size_bytes)

    def grow(self, size_bytes: int) -> None:
        """Note that what is kept has grown, and evict what exceeds the limit.

        What was used since this last looked gets another chance, the latest one stays.
        """
        self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes and len(self._plans) > 1:
            plan, (entry, key) = self._plans.popitem(last=False)
            if plan.is_used:
                plan.is_used = False
                self._plans[plan] = entry, key
                continue
            del entry.plans[key]
            self.size_bytes -= plan.size_bytes


def trace_bytes(trace: KernelTrace) -> int:
    """Return about what a trace takes in memory, in bytes."""
    return sum(_size(group.body) + group.program_ids.nbytes for group in trace.groups)


def _size(value: Any) -> int:
    if isinstance(value, Separable | Predicate):
        return _RECORD_BYTES + sum(array.nbytes for array in value.terms.values())
    if isinstance(value, tuple):
        return sum(map(_size, value))
    names = field_names(value)
    if not names:
        return 0
    return _RECORD_BYTES + sum(_size(getattr(value, name)) for name in names)
