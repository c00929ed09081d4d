"""The steps that look at every load and store of a watched plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Transfer
from kernbench.errors import (
    AddressOverflowError,
    DataRaceError,
    UndefinedValueError,
    UninitializedReadError,
)
from kernbench.replay import AccessSite, Frame
from kernbench.sanitizer.checks.conversions import report_conversions
from kernbench.sanitizer.checks.non_finite import check_stored, note_read
from kernbench.sanitizer.checks.origins import Origin, Origins, undefined_use
from kernbench.sanitizer.facts.lanes import LaneFinder, Lanes, mark_written, unwritten_lanes
from kernbench.sanitizer.facts.launch import LaunchState, element, written_of
from kernbench.sanitizer.facts.places import Places
from kernbench.sanitizer.facts.shadows import IDS, Shadow, clean
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.races import Touched
from kernbench.sanitizer.ordering.trace_touches import is_blind, is_volatile

Array = npt.NDArray[Any]


class AccessCheck:
    """The step before a load or a store: addresses, bounds, races and unwritten memory."""

    def __init__(
        self,
        command: Transfer,
        site: AccessSite,
        places: Places,
        origins: Origins,
        mask: int,
        gather: int,
        value: int,
        *,
        collects: bool,
    ) -> None:
        """Prepare the step; with ``collects`` it notes which bytes the access touches."""
        self.site, self.lanes = site, LaneFinder(site)
        self._command = command
        self._collects = collects
        self._is_plain_store = site.is_store and not site.atomic
        self._is_plain = not site.atomic and not is_volatile(command)
        self._only_writes = self._is_plain_store or is_blind(command)
        self._place = places.number(_name(site), site.verb)
        self.origins = origins
        self._mask, self._gather, self._value = mask, gather, value
        """Slots of shadows; a slot that always holds None where there is nothing to look at."""
        self.unwritten: Array | None = None
        """Flat positions that the load to come takes from memory that nothing has written."""

    def __call__(self, frame: Frame) -> None:
        site, values = self.site, frame.values
        state: LaunchState = frame.state
        self.unwritten = None
        buffer = self.lanes.buffer(frame)
        self._check_mask(frame, values[self._mask])
        touched = state.touched(buffer)
        written = written_of(buffer)
        gather, value = values[self._gather], values[self._value]
        nothing_to_see = touched is None and written is None and gather is None and value is None
        if nothing_to_see and not self._collects:
            return
        if gather is not None:
            self._check_addresses(frame, gather)
        lanes = self.lanes.find(frame)
        if self._collects and not isinstance(buffer.touches, OrderedMap):
            state.seen.add(self._command, lanes.where, buffer)
        if value is not None:
            self._check_value(frame, lanes, value)
        if touched is not None:
            self._check_race(frame, lanes, touched)
        if written is None:
            return
        if self._only_writes:
            mark_written(written, lanes.where, site.itemsize)
            return
        missing = unwritten_lanes(written, lanes.where, site.itemsize)
        if missing is not None:
            self._note_unwritten(frame, lanes, missing)

    def _note_unwritten(self, frame: Frame, lanes: Lanes, missing: Array) -> None:
        """Let a load take lanes that nothing has written; refuse an atomic that would.

        A load may be followed by a choice of other lanes; what an atomic finds stays.
        """
        state: LaunchState = frame.state
        at = int(np.argmax(missing))
        place = element(self.lanes.buffer(frame), int(lanes.where[at]), self.site.itemsize)
        text = (
            f"{self._here(frame, int(lanes.positions[at]))} {self.site.verb} "
            f"{self.site.itemsize} bytes at {place}, which nothing has written"
        )
        if not self._is_plain:
            raise UninitializedReadError(f"{text}; initialise the tensor or mask the access")
        state.unwritten.setdefault(self.site.line, text)
        self.unwritten = lanes.positions[missing]

    def _here(self, frame: Frame, position: int) -> str:
        state: LaunchState = frame.state
        program = self.lanes.program(frame, position)
        return f"{_name(self.site)} ({state.launched}, program {program})"

    def _check_mask(self, frame: Frame, shadow: Shadow) -> None:
        if shadow is None:
            return
        shadow = self.origins.undefined(np.broadcast_to(shadow, self._shape(frame)).reshape(-1))
        if shadow.any():
            at = int(np.argmax(shadow != 0))
            use = "is masked by an undefined value"
            raise self._undefined(frame, at, int(shadow[at]), use, " or combine the masks")

    def _check_addresses(self, frame: Frame, shadow: Array) -> None:
        """Refuse an address that is undefined or overflowed, before anything follows it."""
        full = np.broadcast_to(shadow, self._shape(frame))
        bad = np.where(np.broadcast_to(self.lanes.active(frame), full.shape), full, 0).reshape(-1)
        if not bad.any():
            return
        at = int(np.argmax(bad != 0))
        report_conversions(frame.state, bad, self.origins, self._here(frame, at))
        bad = np.where(self.origins.of_conversions(bad), 0, bad)
        if not bad.any():
            return
        at = int(np.argmax(bad != 0))
        origin = self.origins[int(bad[at])]
        if origin.overflowed:
            raise AddressOverflowError(
                f"{self._here(frame, at)} uses an address whose 32-bit offset overflowed in "
                f"{origin}; widen an operand with .to(tl.int64)"
            )
        use, instead = "uses an undefined address", " or mask this access too"
        raise self._undefined(frame, at, int(bad[at]), use, instead)

    def _check_value(self, frame: Frame, lanes: Lanes, shadow: Array) -> None:
        marked = self.lanes.pick(shadow, frame, lanes.positions)
        bad = self.origins.undefined(marked)
        if not bad.any():
            if marked.any():
                at = int(np.argmax(marked != 0))
                here = self._here(frame, int(lanes.positions[at]))
                report_conversions(frame.state, marked, self.origins, here)
            return
        at = int(np.argmax(bad != 0))
        place = element(self.lanes.buffer(frame), int(lanes.where[at]), self.site.itemsize)
        use, instead = f"stores an undefined value to {place}", " or mask this store too"
        raise self._undefined(frame, int(lanes.positions[at]), int(bad[at]), use, instead)

    def _undefined(
        self, frame: Frame, position: int, number: int, use: str, instead: str
    ) -> UndefinedValueError | UninitializedReadError:
        here = self._here(frame, position)
        return undefined_use(self.origins[number], frame.state, here, use, instead)

    def _check_race(self, frame: Frame, lanes: Lanes, touched: Touched | OrderedMap) -> None:
        state: LaunchState = frame.state
        # Atomics race with plain writes only, as reads do.
        look = touched.write if self._is_plain_store else touched.read
        actors = state.actors(lanes.programs, plain=self._is_plain)
        found = look(lanes.where, actors, self._place, self.site.itemsize)
        if found is not None and not self._is_plain:
            actors = state.actors(lanes.programs, plain=True)
            found = look(lanes.where, actors, self._place, self.site.itemsize)
        if found is None:
            return
        at, other = found
        place = element(self.lanes.buffer(frame), int(lanes.where[at]), self.site.itemsize)
        here = self._here(frame, int(lanes.positions[at]))
        raise DataRaceError(f"{here} {self.site.verb} {place}, which {other}")

    def _shape(self, frame: Frame) -> tuple[int, ...]:
        return (frame.num_programs, *self.site.access.shape)


class LoadShadow:
    """The step after a load: which lanes are undefined, and whether NaN or Inf came in."""

    def __init__(
        self, check: AccessCheck, slot: int, target: int, origin: int | None, other: int
    ) -> None:
        self._check, self._lanes = check, check.lanes
        self._slot, self._target = slot, target
        self._origin, self._other = origin, other
        """The number of masked-off lanes, or None and the slot of the shadow of ``other=``."""
        self._unwritten = check.origins.number(Origin(check.site.line, is_unwritten=True))

    def __call__(self, frame: Frame) -> None:
        shadow = self._masked_off(frame)
        if self._check.unwritten is not None:
            shape = (frame.num_programs, *self._lanes.site.access.shape)
            full: Array = np.zeros(shape, IDS)
            full.reshape(-1)[self._check.unwritten] = self._unwritten
            shadow = full if shadow is None else np.maximum(full, shadow)
        frame.values[self._target] = shadow
        note_read(frame, frame.values[self._slot], self._lanes)

    def _masked_off(self, frame: Frame) -> Shadow:
        other = frame.values[self._other]
        if self._origin is None and other is None:
            return None
        active = self._lanes.active(frame)
        if active.all():
            return None
        masked_off: Any = self._origin if other is None else other
        return clean(np.where(active, 0, masked_off).astype(IDS))


class StoreNonFinite:
    """The step before a store that looks for NaN and Inf which the launch made."""

    def __init__(self, check: AccessCheck, value: int, names: list[str]) -> None:
        self._check, self._value, self._names = check, value, names

    def __call__(self, frame: Frame) -> None:
        check_stored(frame, frame.values[self._value], self._check.lanes, self._names)


def _name(site: AccessSite) -> str:
    return f"tt.{site.op} at {site.line}"
