"""Commands of a strand on data, as soon as they are emitted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    KernelTrace,
    ProgramGroup,
    Tile,
    Transfer,
    access_of,
    axis_dim,
    uniform,
    walk,
)
from kernbench.dtypes import bool_
from kernbench.errors import BadPointerError
from kernbench.kernel_ir import ABSOLUTE, Op, SplitPrograms
from kernbench.replay.group_plan import GroupPlan
from kernbench.replay.interleaved.values import Rows
from kernbench.replay.lifetimes import reads, results

if TYPE_CHECKING:
    from kernbench.replay.interleaved.strand import Strand

Array = npt.NDArray[Any]


def execute(strand: Strand, op: Op, commands: tuple[Command, ...]) -> tuple[Command, ...]:
    """Run commands for the programs of a strand; return them with every address placed.

    Raises:
        SplitPrograms: Programs reach different tensors by one command.
        BadPointerError: An address belongs to no tensor.
        OutOfBoundsError: An access leaves its tensor.
    """
    commands = tuple(placed for each in commands for placed in _placed(strand, op, each))
    memory = strand.launch.memory
    inner = [each for command in commands for each in walk((command,))]
    transfers = [each for each in inner if isinstance(each, DmaRead | DmaWrite | Atomic)]
    for each in transfers:
        memory.check_pointer(access_of(each).param)
    kept = frozenset(tile.slot for command in commands for tile in results(command))
    plan = GroupPlan(
        ProgramGroup(strand.program_ids, commands), _trace(strand, commands), None, kept
    )
    given = {
        slot: strand.data[slot].array
        for command in commands
        for slot in reads(command)
        if slot in strand.data
    }
    frame = memory.frame
    frame.changed = False
    with np.errstate(all="ignore"):
        plan.run(frame, memory.params, given)
    if any(not isinstance(each, DmaRead) for each in transfers):
        stores = any(isinstance(each, DmaWrite) for each in transfers)
        memory.version += stores or frame.changed
    strand.polled |= any(not isinstance(each, DmaWrite) for each in transfers)
    copies = any(isinstance(each, DmaRead) for each in transfers)
    for slot in kept:
        value = frame.values[slot]
        strand.keep(slot, value.copy() if copies and memory.shows(value) else value)
    frame.values = []
    return commands


def _trace(strand: Strand, commands: tuple[Command, ...]) -> KernelTrace:
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
    addresses, active = _lanes(strand, command, access)
    memory = strand.launch.memory
    found = memory.find_all(np.where(active, addresses, _any(addresses, active)))
    if not active.any():
        found[...] = memory.any_param()
    if (found < 0).any():
        raise _lost(strand, op, command, addresses, active & (found < 0))
    params = np.unique(found)
    if len(params) == 1:
        return (_on(strand, command, int(params[0])),)
    rows = found.reshape(len(found), -1)
    if (rows == rows[:, :1]).all():
        raise SplitPrograms(rows[:, 0])
    return _one_by_one(strand, op, command, found, active)


def _any(addresses: Array, active: Array) -> Any:
    return addresses[active][0] if active.any() else 0


def _lanes(strand: Strand, command: Transfer, access: Access) -> tuple[Array, Array]:
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
    moved = Access(param, access.offset - base, access.dtype, access.gather)
    if isinstance(command, DmaRead):
        return replace(command, source=moved)
    if isinstance(command, DmaWrite):
        return replace(command, dest=moved)
    return replace(command, access=moved)


def _one_by_one(
    strand: Strand, op: Op, command: Transfer, found: Array, active: Array
) -> tuple[Command, ...]:
    """Return one command per tensor that lanes of one tile lie in."""
    parts: list[Command] = []
    params = np.unique(found[active]).tolist()
    for param in params:
        part = _on(strand, command, param)
        mask = strand.new_tile(access_of(command).shape, bool_)
        strand.data[mask.slot] = Rows(active & (found == param))
        part = replace(part, mask=mask)
        if isinstance(part, DmaRead) and param != params[-1]:
            part = replace(part, dst=strand.new_tile(part.dst.shape, part.dst.dtype))
        if isinstance(part, DmaRead) and parts:
            before = parts[-1]
            assert isinstance(before, DmaRead)
            part = replace(part, other=before.dst)
        if isinstance(part, Atomic) and part.dst is not None:
            raise strand.unsupported(op, "one atomic on several tensors whose old values are used")
        parts.append(part)
    return tuple(parts)


def _lost(
    strand: Strand, op: Op, command: Transfer, addresses: Array, lost: Array
) -> BadPointerError:
    flat = int(np.argmax(lost))
    position = flat // max(int(np.prod(addresses.shape[1:])), 1)
    address = int(addresses.reshape(-1)[flat])
    return BadPointerError(
        f"{op.name} at {command.line} goes to address {address:#x} (program "
        f"{strand.launch.coordinates(int(strand.program_ids[position]))}), which belongs to no "
        "live tensor; was the tensor freed, or the pointer made in another run?"
    )
