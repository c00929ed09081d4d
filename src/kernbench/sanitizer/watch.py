"""What the sanitizer does around every command of a plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
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
from kernbench.replay import AccessSite, Frame, GroupPlan, Step, atomic_name, results
from kernbench.sanitizer.accesses import AccessCheck, LoadShadow, StoreNonFinite
from kernbench.sanitizer.checks.collisions import CollisionCheck
from kernbench.sanitizer.checks.conversions import ConversionCheck
from kernbench.sanitizer.checks.non_finite import is_float, note_made
from kernbench.sanitizer.checks.origins import Origin, Origins
from kernbench.sanitizer.checks.overflow import Overflow
from kernbench.sanitizer.facts.launch import LaunchState
from kernbench.sanitizer.facts.places import Places
from kernbench.sanitizer.facts.shadows import build_math, gemm_shadow, reduce_shadow
from kernbench.sanitizer.ordering.signals import Signal

Array = npt.NDArray[Any]

ABSOLUTE = -1
"""The parameter of an address that was made from an integer: which tensor it is in is unknown."""
_NOBODY = -1
"""A slot number of which the shadow is always None."""


class SanitizerWatch:
    """Puts checks around the commands of plans; holds nothing that a command does to data."""

    def __init__(self, *, nan_only: bool, masked_is_zero: bool) -> None:
        self._masked_is_zero = masked_is_zero
        self._origins = Origins()
        self._places = Places()
        self._names: list[str] = []
        """The commands that may make NaN."""
        self._name_numbers: dict[str, int] = {}
        self._checks: dict[Command, AccessCheck] = {}
        self._nan_only = nan_only
        """Kernels that compute with Inf (as an online softmax does) make Inf on purpose."""

    def is_in_address(self, command: Math) -> bool:
        """Return whether it is 32-bit arithmetic whose result becomes part of an address."""
        raise NotImplementedError

    def collects(self, command: Transfer) -> bool:
        """Return whether only a run can tell which bytes a command touches."""
        raise NotImplementedError

    # What a plan asks of its watch (kernbench.replay.plans.plan.Watch):

    def begin(self, group: GroupPlan) -> list[Step]:
        return [_start_chunk]

    def before(self, group: GroupPlan, command: Command) -> list[Step]:
        if not isinstance(command, Transfer) or access_of(command).param == ABSOLUTE:
            return []
        access = access_of(command)
        site = AccessSite(
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
        check = AccessCheck(
            command,
            site,
            self._places,
            self._origins,
            mask,
            gather,
            value,
            collects=self.collects(command),
        )
        self._checks[command] = check
        if not isinstance(command, DmaWrite):
            return [check]
        steps, slot = group.fetch(command.value)
        return [check, *steps, StoreNonFinite(check, slot, self._names)]

    def after(self, group: GroupPlan, command: Command) -> list[Step]:
        if isinstance(command, DmaRead):
            return self._after_load(group, command)
        if isinstance(command, DmaWrite):
            return self._after_store(group, command)
        if isinstance(command, Loop):
            return []
        if isinstance(command, Math):
            steps = self._after_math(group, command)
        elif isinstance(command, Gemm):
            steps = self._after_gemm(group, command)
        elif isinstance(command, Reduce):
            steps = self._after_reduce(group, command)
        else:
            steps = [_defined(group.shadow(tile.slot)) for tile in results(command)]
            if isinstance(command, Atomic):
                steps += self._after_atomic(group, command)
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
        origin = None
        if command.other is None and not self._masked_is_zero:
            origin = self._origins.number(Origin(command.line))
        other = self._shadow(group, command.other)
        steps: list[Step] = [LoadShadow(check, command.dst.slot, target, origin, other)]
        if command.volatile:
            steps.append(Signal(command, check.lanes, None))
        return steps

    def _after_store(self, group: GroupPlan, command: DmaWrite) -> list[Step]:
        check = self._checks.pop(command, None)
        if check is None:
            return []
        steps, slot = group.fetch(command.value)
        return [*steps, CollisionCheck(check.lanes, slot)]

    def _after_atomic(self, group: GroupPlan, command: Atomic) -> list[Step]:
        check = self._checks.pop(command, None)
        if check is None:
            return []
        if command.compare is None:
            return [Signal(command, check.lanes, None)]
        steps, slot = group.fetch(command.compare)
        return [*steps, Signal(command, check.lanes, slot)]

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
        if self.is_in_address(command):
            number = self._origins.number(Origin(command.line, command.op))
            steps.append(Overflow(command, slots, target, number))
        if command.op in ("arith.fptosi", "arith.fptoui"):
            steps.append(ConversionCheck(command, slots[0], target, self._origins))
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
        name = f"{op} at {line}"
        if name not in self._name_numbers:
            self._name_numbers[name] = len(self._names)
            self._names.append(name)
        return self._name_numbers[name]


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


def is_infinite(operand: Operand) -> bool:
    """Return whether it is a constant that is Inf or NaN."""
    return (
        isinstance(operand, Splat)
        and isinstance(operand.value, float)
        and not math.isfinite(operand.value)
    )
