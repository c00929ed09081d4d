"""The checks of one trace, and the race maps of its launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Access, Atomic, DmaRead, KernelTrace, Math, Transfer, access_of
from kernbench.replay import PointerArg, operands
from kernbench.sanitizer.checks.overflow import address_arithmetic
from kernbench.sanitizer.ordering.ordered_map import OrderedMap
from kernbench.sanitizer.ordering.races import Touched
from kernbench.sanitizer.ordering.segments import Segments
from kernbench.sanitizer.ordering.trace_touches import is_known
from kernbench.sanitizer.watch import ABSOLUTE, SanitizerWatch, is_infinite

Array = npt.NDArray[Any]


class TraceWatch(SanitizerWatch):
    """Puts checks around the commands of one trace; holds nothing of a launch."""

    def __init__(self, trace: KernelTrace, *, masked_is_zero: bool) -> None:
        super().__init__(
            nan_only=any(
                is_infinite(operand)
                for command in trace.commands()
                for operand in operands(command)
            ),
            masked_is_zero=masked_is_zero,
        )
        self._in_addresses = address_arithmetic(trace)
        self._written: set[int] = set()
        self._granules: dict[int, int] = {}
        self.orders_itself = False
        """Whether programs tell each other something: some atomic's old value is read."""
        for command in trace.commands():
            if isinstance(command, Transfer):
                param = access_of(command).param
                before = self._granules.get(param, 0)
                self._granules[param] = math.gcd(before, _alignment(access_of(command)))
                if not isinstance(command, DmaRead):
                    self._written.add(param)
                if isinstance(command, Atomic) and command.dst is not None:
                    self.orders_itself = True
        self._written.discard(ABSOLUTE)
        self._granules.pop(ABSOLUTE, None)

    @property
    def written(self) -> frozenset[int]:
        """The parameters that the launch writes through."""
        return frozenset(self._written)

    def is_in_address(self, command: Math) -> bool:
        return command in self._in_addresses

    def collects(self, command: Transfer) -> bool:
        return not is_known(command)

    def touched(
        self, pointers: dict[int, PointerArg], grid: tuple[int, int, int], segments: Segments
    ) -> Mapping[int, Touched | OrderedMap]:
        """Return the race maps of a launch, by the identity of the buffers that it writes to."""
        buffers = {id(pointers[p].buffer): pointers[p].buffer for p in self._written}
        if self.orders_itself:
            return {
                key: OrderedMap(buffer.size_bytes, segments, self._places)
                for key, buffer in buffers.items()
            }
        granules = dict.fromkeys(buffers, 0)
        for param, granule in self._granules.items():
            argument = pointers[param]
            key = id(argument.buffer)
            if key in granules:
                granules[key] = math.gcd(granules[key], granule, argument.offset_bytes)
        return {
            key: Touched(buffer.size_bytes, granules[key], self._places, grid)
            for key, buffer in buffers.items()
        }


def _alignment(access: Access) -> int:
    """Return a number of bytes that divides the size and every known address of an access."""
    found = math.gcd(access.dtype.itemsize, access.offset.const)
    for array in access.offset.terms.values():
        found = math.gcd(found, int(np.gcd.reduce(array, axis=None)))
    return found
