"""What the time of one command went to: the resource that held it up, in whole picoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from kernbench.hardware import Machine
from kernbench.op_log import Limit, RowReader, Template

PEERS = "in-kernel wait"
"""A kernel moves bytes to or from other SIPs, or waits for a signal, and nothing else runs."""
SHARED_HBM = "shared HBM"
"""What a command took longer because others on its SIP used HBM."""
SHARED_POWER = "shared HBM, power"
"""The same of a kernel whose engines may also have run slower for the SIP's power."""
FRONT_END = "front end"
"""The device's own part of a launch."""
UNKNOWN = "unknown"
"""A kernel whose limits were not computed."""
_ENGINES = {Limit.GEMM: ("gemm",), Limit.MATH: ("math",)}
_MOVES = ("dma_in", "dma_out")


@dataclass(frozen=True, slots=True)
class TimePart:
    """A share of a command's time."""

    resource: str
    time_ps: int


class Resources:
    """Splits the time of commands by resource, with a cache per template."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._reader = RowReader()
        self.of_kernel = cache(_of_kernel)
        self.line_of = cache(self._line_of)
        self.busiest_link = cache(self._busiest_link)

    def _busiest_link(self, template: Template, num_ranks: int) -> str:
        """Return the name of the link that a collective keeps busy longest; empty without one."""
        rows = self._reader.read(template, num_ranks)
        used = rows["link"] >= 0
        busy = np.bincount(rows["link"][used], rows["busy_ps"][used]) if used.any() else ()
        return self._machine.links[int(np.argmax(busy))].name if len(busy) else ""

    def _line_of(self, template: Template) -> tuple[str, int]:
        """Return the source line at which a kernel uses longest what holds it up; or ("", 0)."""
        texts = self._reader.vocabulary
        rows = self._reader.read(template, 1)
        limit = bound_by(template.limits_ps) if template.limits_ps else Limit.LATENCY
        engines = [texts.code(name) for name in _ENGINES.get(Limit(limit), _MOVES)]
        known = rows["line"] > 0
        mine = known & np.isin(rows["engine"], engines)
        chosen = mine if mine.any() else known
        if not chosen.any():
            return "", 0
        busy: dict[tuple[int, int], int] = {}
        weights = rows["busy_ps"][chosen] * np.maximum(rows["pe_count"][chosen], 1)
        places = zip(rows["file"][chosen].tolist(), rows["line"][chosen].tolist(), strict=True)
        for place, ps in zip(places, weights.tolist(), strict=True):
            busy[place] = busy.get(place, 0) + ps
        file, line = max(busy, key=lambda place: busy[place])
        return texts.texts[file], line


def bound_by(limits_ps: Mapping[Limit, int]) -> Limit:
    """Return what holds a kernel up longest by itself; a power cap only slows that down."""
    known = [limit for limit in limits_ps if limit is not Limit.POWER]
    return max(known, key=lambda limit: limits_ps[limit], default=Limit.LATENCY)


def _of_kernel(template: Template, taken_ps: int, time_ps: int) -> tuple[TimePart, ...]:
    """Return what ``time_ps`` of a kernel that took ``taken_ps`` went to, in all exactly that.

    The resource that holds a kernel up longest by itself has that time; what is left is
    latency: filling, draining, programs that do not fill the SIP.
    """
    shares: dict[str, int] = {}
    clocked = template.energy_pj and bound_by(template.limits_ps) is not Limit.HBM
    shared = SHARED_POWER if clocked else SHARED_HBM
    shares[shared] = max(taken_ps - template.duration_ps, 0)
    shares[PEERS] = template.comm_ps
    shares[Limit.POWER] = template.limits_ps.get(Limit.POWER, 0)
    if template.limits_ps:
        limit = bound_by(template.limits_ps)
        own_ps = taken_ps - sum(shares.values())
        shares[limit] = min(template.limits_ps[limit], own_ps)
        shares[Limit.LATENCY] = taken_ps - sum(
            ps for name, ps in shares.items() if name != Limit.LATENCY
        )
    else:
        shares[UNKNOWN] = taken_ps - sum(shares.values())
    return _scaled(shares, taken_ps, time_ps)


def _scaled(shares: Mapping[str, int], whole_ps: int, time_ps: int) -> tuple[TimePart, ...]:
    """Return the shares of a whole for a part of it, rounded so that they add up."""
    parts = []
    before = before_scaled = 0
    for name, ps in shares.items():
        before += ps
        scaled = before * time_ps // whole_ps if whole_ps else 0
        if scaled > before_scaled:
            said = FRONT_END if name == Limit.LAUNCH else str(name)
            parts.append(TimePart(said, scaled - before_scaled))
        before_scaled = scaled
    return tuple(parts)
