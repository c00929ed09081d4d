"""Lanes that a load masks off without ``other=``: their values are undefined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from kernbench.checks import Allowed, remedy
from kernbench.commands import Atomic
from kernbench.errors import UndefinedValueError
from kernbench.replay import Frame, atomic_name
from kernbench.sanitizer.accesses import Mark, WatchedAccess
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.shadows import IDS, Shadow
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import Origin, UsedLane


@dataclass(frozen=True, slots=True)
class MaskedOff(Origin):
    """The lane was masked off in its load, or in the atomic whose old value it is."""

    name: str = "tt.load"
    remedy: str = "give that load an other="

    def report(self, used: UsedLane, state: LaunchState) -> None:
        raise UndefinedValueError(
            f"{used.here} {used.what}: it comes from the masked-off lanes of {self.name} at "
            f"{self.line}{self.through}; {self.remedy}{used.instead}, "
            f"{remedy(Allowed.MASKED_LANES)}"
        )


class Undefined(Check):
    """Marks masked-off lanes; ADR-0020 D4 says which of their uses are errors."""

    allowed_by = Allowed.MASKED_LANES

    def marks(self, access: WatchedAccess) -> list[Mark]:
        if access.other is not None:
            return []
        origin = MaskedOff(access.site.line)
        if isinstance(access.command, Atomic):
            origin = MaskedOff(
                access.site.line,
                name=f"tt.{atomic_name(access.command)}",
                remedy="drop those lanes by tl.where",
            )
        return [partial(_masked_off, access, self.kernel.origins.number(origin))]


def _masked_off(access: WatchedAccess, number: int, frame: Frame) -> Shadow:
    active = access.active(frame)
    return None if active.all() else np.where(active, 0, number).astype(IDS)
