"""Which program wrote a byte last, and at which line: of launches whose stores are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.replay import Frame, GroupPlan, Step
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check


@dataclass
class Writers:
    """The stores and atomics of a run's launches, in the order in which they were executed."""

    _stores: list[tuple[npt.NDArray[Any], int, str]] = field(default_factory=list)
    """Addresses of first bytes, bytes of an element, and whose store it is."""

    def last(self, address: int) -> str:
        """Return who wrote the byte at an address last; empty if no launch did."""
        for where, itemsize, who in reversed(self._stores):
            if bool(((where <= address) & (address < where + itemsize)).any()):
                return str(who)
        return ""

    def kind(self) -> type[Check]:
        """Return the check that keeps them."""
        stores = self._stores

        class KeptStores(Check):
            """Keeps where each program stores."""

            def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
                if access.stored is None and not access.site.atomic:
                    return []

                def step(frame: Frame) -> None:
                    lanes = access.find(frame)
                    base = access.buffer(frame).bytes.ctypes.data
                    for program in np.unique(lanes.programs):
                        mine = lanes.programs == program
                        position = int(lanes.positions[np.argmax(mine)])
                        where = base + lanes.where[mine]
                        who = f"program {access.program(frame, position)} in {access.name}"
                        stores.append((where, access.site.itemsize, who))

                return [step]

        return KeptStores
