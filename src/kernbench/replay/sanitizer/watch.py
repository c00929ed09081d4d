"""What the sanitizer does around every command of a plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Access,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    KernelTrace,
    Loop,
    Mask,
    Math,
    Operand,
    Reduce,
    SourceLine,
    Splat,
    Tile,
    Transfer,
    access_of,
)
from kernbench.replay.frame import Frame, PointerArg
from kernbench.replay.group_plan import GroupPlan
from kernbench.replay.lifetimes import operands, results
from kernbench.replay.sanitizer.accesses import AccessCheck, LoadShadow, StoreNonFinite
from kernbench.replay.sanitizer.launch import LaunchState
from kernbench.replay.sanitizer.non_finite import is_float, note_made
from kernbench.replay.sanitizer.origins import Origin, Origins
from kernbench.replay.sanitizer.overflow import Overflow, address_arithmetic
from kernbench.replay.sanitizer.races import Touched
from kernbench.replay.sanitizer.shadows import build_math, gemm_shadow, reduce_shadow
from kernbench.replay.sites import Site, atomic_name
from kernbench.replay.steps import Step

Array = npt.NDArray[Any]

_ABSOLUTE = -1
"""The parameter of an address that was made from an integer: which tensor it is in is unknown."""
_NOBODY = -1
"""A slot number of which the shadow is always None."""


class SanitizerWatch:
    """Puts checks around the commands of one trace; holds nothing of a launch."""

    def __init__(self, trace: KernelTrace) -> None:
        self._origins = Origins()
        self._sites: list[Site] = []
        self._names: list[str] = []
        """The commands that may make NaN."""
        self._in_addresses = address_arithmetic(trace)
        self._checks: dict[Command, AccessCheck] = {}
        self._written: set[int] = set()
        self._granules: dict[int, int] = {}
        self._orders_itself = False
        """Whether programs may wait for each other: what an atomic finds then decides who is
        first, and plain accesses after it are ordered by it."""
        for command in trace.commands():
            if isinstance(command, Transfer):
                param = access_of(command).param
                before = self._granules.get(param, 0)
                self._granules[param] = math.gcd(before, _alignment(access_of(command)))
                if not isinstance(command, DmaRead):
                    self._written.add(param)
                if isinstance(command, Atomic) and command.dst is not None:
                    self._orders_itself = True
        self._written.discard(_ABSOLUTE)
        self._granules.pop(_ABSOLUTE, None)
        self._nan_only = any(
            isinstance(operand, Splat)
            and isinstance(operand.value, float)
            and not math.isfinite(operand.value)
            for command in trace.commands()
            for operand in operands(command)
        )
        """Kernels that compute with Inf (as an online softmax does) make Inf on purpose."""

    @property
    def written(self) -> frozenset[int]:
        """The parameters that the launch writes through."""
        return frozenset(self._written)

    def touched(self, pointers: dict[int, PointerArg]) -> dict[int, Touched]:
        """Return the race maps of a launch, by the identity of the buffers that it writes to."""
        if self._orders_itself:
            return {}
        buffers = {id(pointers[p].buffer): pointers[p].buffer for p in self._written}
        granules = dict.fromkeys(buffers, 0)
        for param, granule in self._granules.items():
            argument = pointers[param]
            key = id(argument.buffer)
            if key in granules:
                granules[key] = math.gcd(granules[key], granule, argument.offset_bytes)
        return {
            key: Touched(buffer.size_bytes, granules[key], len(self._sites))
            for key, buffer in buffers.items()
        }

    # -- kernbench.replay.plan.Watch ----------------------------------------------------------

    def begin(self, group: GroupPlan) -> list[Step]:
        return [_start_chunk]

    def before(self, group: GroupPlan, command: Command) -> list[Step]:
        if not isinstance(command, Transfer) or access_of(command).param == _ABSOLUTE:
            return []
        access = access_of(command)
        site = Site(
            access,
            command.mask,
            command.line,
            group.chunks,
            is_store=not isinstance(command, DmaRead),
            atomic=atomic_name(command) if isinstance(command, Atomic) else "",
        )
        mask = self._shadow(group, command.mask)
        gather = self._shadow(group, access.gather)
        value = self._shadow(group, None if isinstance(command, DmaRead) else command.value)
        check = AccessCheck(command, site, self._sites, self._origins, mask, gather, value)
        if not isinstance(command, DmaWrite):
            self._checks[command] = check
            return [check]
        steps, slot = group.fetch(command.value)
        return [check, *steps, StoreNonFinite(check, slot, self._names)]

    def after(self, group: GroupPlan, command: Command) -> list[Step]:
        if isinstance(command, DmaRead):
            return self._after_load(group, command)
        if isinstance(command, DmaWrite | Loop):
            return []
        if isinstance(command, Math):
            steps = self._after_math(group, command)
        elif isinstance(command, Gemm):
            steps = self._after_gemm(group, command)
        elif isinstance(command, Reduce):
            steps = self._after_reduce(group, command)
        else:
            steps = [_defined(group.shadow(tile.slot)) for tile in results(command)]
        for tile in results(command):
            if is_float(tile.dtype.numpy):
                name = command.op if isinstance(command, Math) else _op_name(command)
                number = self._name(name, command.line)
                steps.append(note_made(number, tile.slot, nan_only=self._nan_only))
        return steps

    # -- one kind of command each -------------------------------------------------------------

    def _after_load(self, group: GroupPlan, command: DmaRead) -> list[Step]:
        target = group.shadow(command.dst.slot)
        check = self._checks.pop(command, None)
        if check is None:
            return [_defined(target)]
        origin = self._origins.number(Origin(command.line)) if command.other is None else None
        other = self._shadow(group, command.other)
        return [LoadShadow(check.lanes, command.dst.slot, target, origin, other)]

    def _after_math(self, group: GroupPlan, command: Math) -> list[Step]:
        propagate = build_math(command)
        shadows = [self._shadow(group, operand) for operand in command.inputs]
        target = group.shadow(command.dst.slot)
        steps: list[Step] = []
        slots: list[int] = []
        for operand in command.inputs:
            before, slot = group.fetch(operand)
            steps += before
            slots.append(slot)

        def step(frame: Frame) -> None:
            values = frame.values
            known = [values[shadow] for shadow in shadows]
            if all(each is None for each in known):
                values[target] = None
            else:
                values[target] = propagate(known, [values[slot] for slot in slots])

        steps.append(step)
        if command in self._in_addresses:
            number = self._origins.number(Origin(command.line, command.op))
            steps.append(Overflow(command, slots, target, number))
        return steps

    def _after_gemm(self, group: GroupPlan, command: Gemm) -> list[Step]:
        inputs = (
            (command.a, command.b)
            if command.acc is None
            else (
                command.a,
                command.b,
                command.acc,
            )
        )
        shadows = [self._shadow(group, operand) for operand in inputs]
        target = group.shadow(command.dst.slot)
        what = f"tt.dot at {command.line}"

        def step(frame: Frame) -> None:
            values = frame.values
            found = gemm_shadow(command, [values[shadow] for shadow in shadows])
            values[target] = self._origins.through(found, what)

        return [step]

    def _after_reduce(self, group: GroupPlan, command: Reduce) -> list[Step]:
        shadows = [self._shadow(group, operand) for operand in command.inputs]
        targets = [group.shadow(tile.slot) for tile in command.dsts]
        what = f"tt.reduce at {command.line}"

        def step(frame: Frame) -> None:
            values = frame.values
            found = reduce_shadow(command, [values[shadow] for shadow in shadows])
            found = self._origins.through(found, what)
            for target in targets:
                values[target] = found

        return [step]

    def _shadow(self, group: GroupPlan, operand: Operand | Mask | None) -> int:
        return group.shadow(operand.slot if isinstance(operand, Tile) else _NOBODY)

    def _name(self, op: str, line: SourceLine) -> int:
        self._names.append(f"{op} at {line}")
        return len(self._names) - 1


def _start_chunk(frame: Frame) -> None:
    state: LaunchState = frame.state
    state.has_read_non_finite = np.zeros(1, np.bool_)
    state.first_site = np.zeros(1, np.int64)


def _defined(target: int) -> Step:
    """Return the step that calls a value defined."""

    def step(frame: Frame) -> None:
        frame.values[target] = None

    return step


def _op_name(command: Command) -> str:
    return "tt.dot" if isinstance(command, Gemm) else "tt.reduce"


def _alignment(access: Access) -> int:
    """Return a number of bytes that divides the size and every known address of an access."""
    found = math.gcd(access.dtype.itemsize, access.offset.const)
    for array in access.offset.terms.values():
        found = math.gcd(found, int(np.gcd.reduce(array, axis=None)))
    return found
