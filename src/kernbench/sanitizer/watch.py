"""The sanitizer's steps around every command of a plan: shadows and checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from kernbench.commands import (
    AddressOverflow,
    Atomic,
    Command,
    DmaRead,
    Gemm,
    Hint,
    KernelTrace,
    Loop,
    Mask,
    Math,
    Operand,
    Reduce,
    Tile,
    Transfer,
    access_of,
)
from kernbench.dtypes import Array
from kernbench.errors import InternalError
from kernbench.kernel_ir import ABSOLUTE
from kernbench.replay import AccessSite, Frame, GroupPlan, PointerArg, Step, atomic_name, results
from kernbench.sanitizer.accesses import LoadShadow, UseCheck, WatchedAccess
from kernbench.sanitizer.check import Check, WatchedKernel
from kernbench.sanitizer.facts.shadows import Swaps, build_math, gemm_shadow, reduce_shadow
from kernbench.sanitizer.launch_state import LaunchState
from kernbench.sanitizer.origins import LaneUse, UsedLane

_NOBODY = -1
"""A slot number of which the shadow is always None."""


class SanitizerWatch:
    """Puts shadows and checks around the commands of one kernel's plans."""

    def __init__(self, kernel: WatchedKernel, kinds: Iterable[type[Check]]) -> None:
        self._origins = kernel.origins
        self.checks = [kind(kernel) for kind in kinds]
        # Only those that do something: launches are many, and live plans are built as they run.
        self._beginning = [(type(check), check.begin) for check in self._with("begin")]
        self._ending = [check.end for check in self._with("end")]
        self._seeing = [check.sees for check in self._with("sees")]
        self._before = [check.before for check in self._with("before")]
        self._marks = [check.marks for check in self._with("marks")]
        self._after = [check.after for check in self._with("after")]
        self._computed = [check.computed for check in self._with("computed")]
        self._accesses: dict[Command, WatchedAccess] = {}
        self._swaps = Swaps()
        self._is_by_data = not isinstance(kernel.source, KernelTrace)
        if isinstance(kernel.source, KernelTrace):
            for command in kernel.source.commands():
                for see in self._seeing:
                    see(command)

    def begin_launch(self, launch: LaunchState) -> None:
        """Let every check prepare for a launch."""
        for kind, begin in self._beginning:
            launch.notes[kind] = begin(launch)

    def end_launch(self, launch: LaunchState) -> None:
        """Let every check examine a launch as a whole.

        Raises:
            KernbenchError: One finds a mistake.
        """
        for end in self._ending:
            end(launch)

    # What a plan asks of its watch (kernbench.replay.Watch):

    def begin(self, group: GroupPlan) -> list[Step]:
        return []

    def before(self, group: GroupPlan, command: Command) -> list[Step]:
        if self._is_by_data:
            for see in self._seeing:
                see(command)
        if not isinstance(command, Transfer) or access_of(command).param == ABSOLUTE:
            return []
        access = self._accesses[command] = _watched(group, command)
        steps = self._uses(group, access)
        for before in self._before:
            steps += before(group, access)
        if access.is_known:
            # Cheap to find again; large arrays that are held cost the command its caches.
            steps.append(access.forget)
        return steps

    def after(self, group: GroupPlan, command: Command) -> list[Step]:
        if isinstance(command, Loop):
            return []
        if isinstance(command, Transfer):
            return self._after_transfer(group, command)
        inputs: list[int] = []
        if isinstance(command, Math):
            steps, inputs = self._after_math(group, command)
        elif isinstance(command, Gemm):
            steps = self._after_gemm(group, command)
        elif isinstance(command, Reduce):
            steps = self._after_reduce(group, command)
        else:
            steps = [_defined(group.shadow(tile.slot)) for tile in results(command)]
        return [*steps, *self._after_computing(group, command, inputs)]

    # -- one kind of command each -------------------------------------------------------------

    def _after_transfer(self, group: GroupPlan, command: Transfer) -> list[Step]:
        access = self._accesses.pop(command, None)
        if access is not None and access.loaded is not None:
            marks = [mark for call in self._marks for mark in call(access)]
            target, other = group.shadow(access.loaded.slot), self._shadow(group, access.other)
            steps: list[Step] = [LoadShadow(access, target, other, marks)]
        else:
            steps = [_defined(group.shadow(tile.slot)) for tile in results(command)]
        if access is not None:
            for after in self._after:
                steps += after(group, access)
            steps.append(access.forget)
        if isinstance(command, Atomic):
            steps += self._after_computing(group, command, [])
        return steps

    def _after_computing(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        return [step for computed in self._computed for step in computed(group, command, inputs)]

    def _after_math(self, group: GroupPlan, command: Math) -> tuple[list[Step], list[int]]:
        propagate = self._swaps.of(command) or build_math(command)
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
            if all(item is None for item in known):
                values[target] = None
            else:
                values[target] = propagate(known, [values[slot] for slot in slots])

        return [*steps, step], slots

    def _after_gemm(self, group: GroupPlan, command: Gemm) -> list[Step]:
        inputs = [command.a, command.b]
        if command.acc is not None:
            inputs.append(command.acc)
        shadows = [self._shadow(group, operand) for operand in inputs]
        target = group.shadow(command.dst.slot)
        what = f"tt.dot at {command.line}"

        def step(frame: Frame) -> None:
            values = frame.values
            array = gemm_shadow(command, [values[shadow] for shadow in shadows])
            values[target] = self._origins.through(array, what)

        return [step]

    def _after_reduce(self, group: GroupPlan, command: Reduce) -> list[Step]:
        shadows = [self._shadow(group, operand) for operand in command.inputs]
        targets = [group.shadow(tile.slot) for tile in command.dsts]
        what = f"tt.reduce at {command.line}"
        self._swaps.sees(command)

        def step(frame: Frame) -> None:
            values = frame.values
            through = reduce_shadow(command, [values[shadow] for shadow in shadows])
            through = self._origins.through(through, what)
            for target in targets:
                values[target] = through

        return [step]

    def _uses(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        """Return the step that checks the shadows of an access's operands, if there are any."""
        command = access.command
        mask = self._shadow(group, command.mask)
        gather = self._shadow(group, access_of(command).gather)
        value = self._shadow(group, None if isinstance(command, DmaRead) else command.value)
        nobody = group.shadow(_NOBODY)
        if mask == nobody and gather == nobody and value == nobody:
            return []
        return [UseCheck(access, self._origins, mask, gather, value)]

    def _shadow(self, group: GroupPlan, operand: Operand | Mask | None) -> int:
        return group.shadow(operand.slot if isinstance(operand, Tile) else _NOBODY)

    def _with(self, method: str) -> list[Check]:
        """Return the checks that override a method."""
        return [check for check in self.checks if method in check.overridden]


def _watched(group: GroupPlan, command: Transfer) -> WatchedAccess:
    site = AccessSite(
        access_of(command),
        command.mask,
        command.line,
        group.chunks,
        is_store=not isinstance(command, DmaRead),
        atomic=atomic_name(command) if isinstance(command, Atomic) else "",
    )
    return WatchedAccess(command, site)


def _defined(target: int) -> Step:
    """Return the step that marks a value as defined."""

    def step(frame: Frame) -> None:
        frame.values[target] = None

    return step


Issued = tuple[Array, Array]


class LiveWatch(SanitizerWatch):
    """Checks the commands of strands, whose plans are built as they run."""

    def __init__(
        self, kernel: WatchedKernel, kinds: Iterable[type[Check]], state: LaunchState
    ) -> None:
        super().__init__(kernel, kinds)
        self.state = state
        self.begin_launch(state)

    def issue(self, program_ids: Array, commands: Collection[Command]) -> Issued | None:
        """Return the segments of programs that issue writes with a later effect."""
        releases = any(
            isinstance(command, Atomic) and command.order in ("release", "acq_rel")
            for command in commands
        )
        order = self.state.order
        if order is None:
            return None
        return program_ids, (order.released_by if releases else order.of)(program_ids)

    def enter(self, frame: Frame, issued: Issued | None) -> None:
        """Prepare a frame for checks of its commands."""
        self.state.issued = issued
        frame.state = self.state

    def refuse(self, overflows: Collection[AddressOverflow]) -> None:
        """Raise an error for the first overflow that became part of an address.

        Raises:
            AddressOverflowError: There is one.
        """
        for check in self.checks:
            check.evaluated(overflows, self.state.launched)

    def refuse_hints(self, hints: Sequence[Hint], program_ids: Array) -> None:
        """Raise an error for the first hint that does not hold.

        Raises:
            WrongHintError: There is one.
        """
        for check in self.checks:
            check.hinted(hints, program_ids, self.state.grid, self.state.launched)

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow without lanes that are defined as data, such as overflowed offsets."""
        return self._origins.relevant(shadow, LaneUse.DECISION)

    def refuse_undefined(
        self, where: str, use: str, program: tuple[int, int, int], number: int
    ) -> NoReturn:
        """Raise an error for the use of a value whose shadow is ``number``.

        Raises:
            UndefinedValueError, UninitializedReadError: Always.
        """
        here = f"{where} ({self.state.launched}, program {program})"
        origin = self._origins[number]
        origin.report(UsedLane(here, use), self.state)
        raise InternalError(f"{origin} let pass that {here} {use}")

    def end(self, pointers: Mapping[int, PointerArg]) -> None:
        """Check the bytes that the launch touched against other operations of the run.

        Raises:
            DataRaceError: One of them is unordered with it.
        """
        self.state.pointers = pointers
        self.end_launch(self.state)
