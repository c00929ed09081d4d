"""A note where one rank keeps the process to itself for long (ADR-0060)."""

from __future__ import annotations

import dis
import threading
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING

from kernbench.clock import is_of_program, user_site
from kernbench.interrupts import frame_of

if TYPE_CHECKING:
    from kernbench.clock import Handle, Rank, Simulation, UserSite

HELD_S = 60.0
"""A guess: longer than a turn of any program of the guides, shorter than patience."""
_LOOK_S = 10.0
_BETWEEN_CALLS = ("JUMP", "RESUME")
"""In names of instructions at which Python lets other threads run, besides in calls."""


class Turns:
    """Looks whose turn it is, from a thread that is none of the run's.

    It is made in the thread that drives the clock.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._driver = threading.get_ident()
        self._turn: tuple[Rank | None, Handle | None] = (None, None)
        self._since_s = self._looked_s = 0.0
        self._noted: set[UserSite] = set()

    def note(self) -> str | None:
        """Return what there is to say of the rank that runs; of each line of a program once.

        Looks are :data:`_LOOK_S` apart at least, however often it is called.
        """
        now_s = perf_counter()
        if now_s - self._looked_s < _LOOK_S:
            return None
        self._looked_s = now_s
        rank, (before, waited) = self._simulation.running, self._turn
        # A rank that gives way waits for another handle then.
        if rank is None or rank is not before or rank.waiting_for is not waited:
            self._turn = rank, None if rank is None else rank.waiting_for
            self._since_s = now_s
            return None
        if now_s - self._since_s < HELD_S or len(self._simulation.ranks) == 1:
            return None
        frame = rank.frame or frame_of(self._driver)
        if frame is None or _is_debugged(frame) or (site := user_site(frame)) in self._noted:
            return None
        self._noted.add(site)
        return (
            f"note: rank {rank.rank_id} has not given way for {now_s - self._since_s:.0f} s; it is "
            f"at {site}, {_doing(frame)}; other ranks run once it waits for one of them"
        )


def _doing(frame: FrameType) -> str:
    """Return what the innermost code does, as far as frames of Python show it."""
    code = frame.f_code
    if not is_of_program(code.co_filename):
        return f"in {frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
    name = dis.opname[code.co_code[frame.f_lasti]]
    is_between = any(call in name for call in _BETWEEN_CALLS)
    return "in Python of its own" if is_between else "in a call there"


def _is_debugged(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "bdb":
            return True
        frame = frame.f_back
    return False
