"""What programs do to memory, as far as races among them are concerned."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from kernbench.commands import Atomic, DmaWrite, Transfer
from kernbench.sanitizer.ordering.touches import is_volatile


class AccessKind(Enum):
    """A way to access memory; two accesses race by :data:`RACES` and :data:`RACES_ELSEWHERE`."""

    READ = auto()
    WRITE = auto()
    UPDATE = auto()
    """An atomic that every device sees as one (``scope="sys"``)."""
    UPDATE_HERE = auto()
    """An atomic that programs of its own device see as one (``scope="gpu"``)."""
    OBSERVE = auto()
    """A look at what others change: a volatile load, or an atomic one."""


RACES: Mapping[AccessKind, tuple[AccessKind, ...]] = {
    AccessKind.READ: (AccessKind.WRITE, AccessKind.UPDATE, AccessKind.UPDATE_HERE),
    AccessKind.WRITE: (
        AccessKind.WRITE,
        AccessKind.READ,
        AccessKind.UPDATE,
        AccessKind.UPDATE_HERE,
        AccessKind.OBSERVE,
    ),
    AccessKind.UPDATE: (AccessKind.WRITE, AccessKind.READ),
    AccessKind.UPDATE_HERE: (AccessKind.WRITE, AccessKind.READ),
    AccessKind.OBSERVE: (AccessKind.WRITE,),
}
"""The kinds with which each races where nothing orders the two."""

RACES_ELSEWHERE: Mapping[AccessKind, tuple[AccessKind, ...]] = {
    AccessKind.READ: (),
    AccessKind.WRITE: (),
    AccessKind.UPDATE: (AccessKind.UPDATE_HERE,),
    AccessKind.UPDATE_HERE: (AccessKind.UPDATE, AccessKind.UPDATE_HERE, AccessKind.OBSERVE),
    AccessKind.OBSERVE: (AccessKind.UPDATE_HERE,),
}
"""Likewise those of other devices with which it races, if they come to the same memory."""


def kind_of_access(command: Transfer) -> AccessKind:
    """Return what a command does to memory beside other programs of its launch.

    An atomic of ``scope="cta"`` is one for the threads of its program alone: to others it is a
    plain access. Source: PTX ISA, memory consistency model, morally strong operations.
    """
    if isinstance(command, Atomic):
        looks = command.kind == "load"
        if command.scope == "cta":
            return AccessKind.READ if looks else AccessKind.WRITE
        if looks:
            return AccessKind.OBSERVE
        return AccessKind.UPDATE if command.scope == "sys" else AccessKind.UPDATE_HERE
    if isinstance(command, DmaWrite):
        return AccessKind.WRITE
    return AccessKind.OBSERVE if is_volatile(command) else AccessKind.READ
