"""Commands of a strand on data: placed on the tensors that they access, then executed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    AddressOverflow,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Hint,
    KernelTrace,
    Math,
    MathClass,
    Operand,
    Predicate,
    ProgramGroup,
    Separable,
    SourceLine,
    Tile,
    Transfer,
    access_of,
    axis_dim,
    field_names,
    uniform,
    walk,
    with_access,
)
from kernbench.dtypes import Array, DType, bool_
from kernbench.errors import BadPointerError
from kernbench.interleaved.partial import known_part
from kernbench.interleaved.values import PickedRows
from kernbench.kernel_ir import ABSOLUTE, Op, SplitPrograms
from kernbench.replay import Frame, GroupPlan, Watch, reads, results

if TYPE_CHECKING:
    from kernbench.interleaved.strand import Strand


_MOST_PLANS, _MOST_ELEMENTS = 1 << 12, 1 << 12
"""Plans that are kept, and elements of a tile of theirs, in all programs."""


class StrandWatch(Watch, Protocol):
    """Observes strands; what it knows about a slot is kept in the strand, at ``~slot``."""

    def issue(self, program_ids: Array, commands: Collection[Command]) -> Any:
        """Return what must be kept of programs whose writes become visible later."""

    def enter(self, frame: Frame, issued: Any) -> None:
        """Prepare a frame for commands that run now, or were ``issued`` before."""

    def refuse(self, overflows: Collection[AddressOverflow]) -> None:
        """Raise the first of the overflows that have become part of an address."""

    def refuse_hints(self, hints: Sequence[Hint], program_ids: Array) -> None:
        """Raise for the first of the hints that does not hold for its value."""

    def undefined(self, shadow: Array) -> Array:
        """Return a shadow less what is defined as data, such as an offset that overflowed."""

    def refuse_undefined(
        self, where: str, use: str, program: tuple[int, int, int], number: int
    ) -> NoReturn:
        """Raise for the use of a value whose shadow is ``number``."""


def place(strand: Strand, op: Op, commands: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the commands of an operation with every address relative to its tensor.

    Raises:
        SplitPrograms: Programs reach different tensors by one command.
        BadPointerError: An address belongs to no tensor that the launch can reach.
    """
    commands = tuple(placed for command in commands for placed in _placed(strand, op, command))
    for transfer in transfers_of(commands):
        strand.launch.memory.check_pointer(access_of(transfer).param)
    return commands


def transfers_of(commands: tuple[Command, ...]) -> list[Transfer]:
    """Return the commands that touch memory, including those in loops."""
    return [node for node in walk(commands) if isinstance(node, DmaRead | DmaWrite | Atomic)]


def execute(strand: Strand, commands: tuple[Command, ...]) -> None:
    """Run placed commands for the programs of a strand.

    Raises:
        OutOfBoundsError: An access leaves its tensor.
    """
    frame, transfers = strand.launch.memory.frame, transfers_of(commands)
    strand.polled |= any(not isinstance(transfer, DmaWrite) for transfer in transfers)
    if strand.launch.memory.is_partial:
        commands = known_part(strand, commands)
        if not commands:
            return
    kept = frozenset(tile.slot for command in commands for tile in results(command))
    capture(strand, commands, kept)()
    copies = any(isinstance(transfer, DmaRead) for transfer in transfers)
    for slot in kept:
        value = frame.values[slot]
        shows = copies and strand.launch.memory.shows(value)
        strand.keep(slot, value.copy() if shows else value)
    frame.values = []


def capture(
    strand: Strand,
    commands: tuple[Command, ...],
    kept: frozenset[int] = frozenset(),
    *,
    later: bool = False,
) -> Callable[[], None]:
    """Return what runs placed commands on the current values of the strand.

    Slots that are ``kept`` can be read from the frame right after it. With ``later`` the strand
    resumes before that.
    """
    memory, transfers = strand.launch.memory, transfers_of(commands)
    watch, program_ids = strand.launch.watch, strand.program_ids
    plan = _plan(strand, commands, kept)
    arrays = {
        slot: strand.data[slot].array
        for command in commands
        for slot in reads(command)
        if slot in strand.data
    }
    issued = None
    if watch is not None:
        for slot in list(arrays):
            if ~slot in strand.data:
                arrays[plan.shadow(slot)] = strand.data[~slot].array
        issued = watch.issue(program_ids, transfers) if later else None
    stores = any(isinstance(transfer, DmaWrite) for transfer in transfers)

    def run() -> None:
        frame = memory.frame
        frame.changed = False
        if watch is not None:
            watch.enter(frame, issued)
        with np.errstate(all="ignore"):
            plan.run(frame, memory.params, arrays)
        if watch is not None:
            for slot in kept:
                strand.keep_shadow(slot, frame.values[plan.shadow(slot)])
        if any(not isinstance(transfer, DmaRead) for transfer in transfers):
            memory.version += stores or frame.changed

    return run


def _plan(strand: Strand, commands: tuple[Command, ...], kept: frozenset[int]) -> GroupPlan:
    """Return the steps of commands: those of equal ones, of earlier launches, too."""
    launch = strand.launch
    group = ProgramGroup(strand.program_ids, commands)
    shapes = [access_of(transfer).shape for transfer in transfers_of(commands)]
    shapes += [tile.shape for command in walk(commands) for tile in results(command)]
    elements = len(strand.program_ids) * max(map(math.prod, shapes), default=1)
    trace = _trace(strand)
    if launch.watch is not None or launch.plans is None or elements > _MOST_ELEMENTS:
        return GroupPlan(group, trace, launch.watch, kept)
    place = trace.name, trace.grid, trace.num_warps, trace.num_slots, strand.program_ids.tobytes()
    key = place, kept, exactly(commands)
    plan = launch.plans.get(key)
    if plan is None:
        if len(launch.plans) >= _MOST_PLANS:
            launch.plans.clear()
        plan = launch.plans[key] = GroupPlan(group, trace, None, kept)
    return plan


def exactly(value: Any) -> Any:
    """Return a key that only values have of which all parts are equal."""
    kind = type(value)
    if kind is tuple:
        return tuple(map(exactly, value))
    if kind is Separable or kind is Predicate:
        terms = [(dims, exactly(np.asarray(array))) for dims, array in value.terms.items()]
        return kind, value.shape, getattr(value, "const", 0), tuple(terms)
    if kind is np.ndarray:
        return value.shape, value.dtype.str, value.tobytes()
    if kind is SourceLine or kind is DType or value is None:
        return value
    names = field_names(value)
    # A number equals others of other types, and zeros of both signs are equal.
    return (kind, *[exactly(getattr(value, name)) for name in names]) if names else repr(value)


def _trace(strand: Strand) -> KernelTrace:
    launch = strand.launch
    return KernelTrace(
        name=launch.module.kernel.name,
        grid=launch.grid,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        groups=(),
        num_slots=strand.num_slots,
        tcm_bytes=0,
        line=launch.module.kernel.line,
        pointer_params=(),
    )


def _placed(strand: Strand, op: Op, command: Command) -> tuple[Command, ...]:
    """Return a command on absolute addresses as commands on the tensors that they lie in."""
    if not isinstance(command, DmaRead | DmaWrite | Atomic):
        return (command,)
    access = access_of(command)
    if access.param != ABSOLUTE:
        return (command,)
    addresses, active = lanes(strand, command, access)
    memory = strand.launch.memory
    array = memory.find_all(
        np.where(active, addresses, addresses[active][0] if active.any() else 0)
    )
    if not active.any():
        array[...] = memory.any_param()
    if (array < 0).any():
        raise _lost(strand, op, command, addresses, active & (array < 0))
    params = np.unique(array)
    if len(params) == 1:
        return (_on(strand, command, int(params[0])),)
    rows = array.reshape(len(array), -1)
    if (rows == rows[:, :1]).all():
        raise SplitPrograms(rows[:, 0])
    return _one_by_one(strand, op, command, array, active)


def lanes(strand: Strand, command: Transfer, access: Access) -> tuple[Array, Array]:
    """Return the address of every lane ``[programs, *tile]``, and which lanes are on."""
    dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(access.shape))))
    addresses = access.offset.dense(dims)
    if access.gather is not None:
        addresses = addresses + strand.array(access.gather)
    mask = command.mask
    active = strand.array(mask) if isinstance(mask, Tile) else mask.dense(dims)
    shape = (len(strand.program_ids), *access.shape)
    return np.broadcast_to(addresses, shape), np.broadcast_to(active, shape)


def _on(strand: Strand, command: Transfer, param: int) -> Transfer:
    access = access_of(command)
    base = uniform(strand.launch.memory.buffer(param).address)
    return with_access(command, Access(param, access.offset - base, access.dtype, access.gather))


def _one_by_one(
    strand: Strand, op: Op, command: Transfer, array: Array, active: Array
) -> tuple[Command, ...]:
    """Return one command per tensor that lanes of one tile lie in."""
    parts: list[Command] = []
    params = np.unique(array[active]).tolist()
    for param in params:
        part = _on(strand, command, param)
        mask = strand.new_tile(access_of(command).shape, bool_)
        strand.data[mask.slot] = PickedRows(active & (array == param))
        part = replace(part, mask=mask)
        if isinstance(part, DmaRead) and param != params[-1]:
            part = replace(part, dst=strand.new_tile(part.dst.shape, part.dst.dtype))
        if isinstance(part, DmaRead) and parts:
            before = parts[-1]
            assert isinstance(before, DmaRead)
            part = replace(part, other=before.dst)
        parts.append(part)
    if isinstance(command, Atomic) and command.dst is not None:
        return _joined(strand, command, command.dst, parts)
    return tuple(parts)


def _joined(
    strand: Strand, command: Atomic, dst: Tile, parts: list[Command]
) -> tuple[Command, ...]:
    """Let the parts of an atomic each return their old values, and merge them."""
    commands: list[Command] = []
    old: Operand | None = None
    for number, part in enumerate(parts):
        assert isinstance(part, Atomic)
        last = number == len(parts) - 1
        own = strand.new_tile(dst.shape, dst.dtype)
        commands.append(replace(part, dst=own))
        if old is None:
            old = own
            continue
        assert isinstance(part.mask, Tile)
        joined = dst if last else strand.new_tile(dst.shape, dst.dtype)
        inputs = (part.mask, own, old)
        commands.append(Math(joined, "arith.select", inputs, MathClass.FREE, command.line))
        old = joined
    return tuple(commands)


def _lost(
    strand: Strand, op: Op, command: Transfer, addresses: Array, lost: Array
) -> BadPointerError:
    flat = int(np.argmax(lost))
    position = flat // max(int(np.prod(addresses.shape[1:])), 1)
    address = int(addresses.reshape(-1)[flat])
    return BadPointerError(
        f"{op.name} at {command.line} points to address {address:#x} (program "
        f"{strand.launch.coordinates(int(strand.program_ids[position]))}), which "
        f"{strand.launch.memory.why_lost(address)}"
    )
