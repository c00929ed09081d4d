"""Memory whose contents are known without data: what the program itself has put there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.memory import Buffer
from kernbench.replay import PointerArg

if TYPE_CHECKING:
    from kernbench.clock import Handle

MOST_ELEMENTS = 1 << 14
"""The largest tensor whose numbers are kept: lengths, offsets, pages, expert ids."""


class KnownMemory:
    """Stand-ins for the buffers of one launch, with contents where those are known."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, tuple[Buffer, Buffer]] = {}

    @property
    def knows_something(self) -> bool:
        return any(buffer.has_data for _, buffer in self._stand_ins.values())

    def params(self, params: Sequence[Any]) -> list[Any]:
        """Return a launch's parameters on the stand-ins."""
        return [
            PointerArg(self._stand_in(param.buffer), param.offset_bytes)
            if isinstance(param, PointerArg)
            else param
            for param in params
        ]

    def _stand_in(self, buffer: Buffer) -> Buffer:
        pair = self._stand_ins.get(id(buffer))
        if pair is None:
            known = buffer.known
            stand_in = Buffer(
                buffer.address, buffer.size_bytes, buffer.sip_id, buffer.label, known is not None
            )
            stand_in.symmetric = buffer.symmetric
            if known is not None:
                stand_in.adopt(known.copy())
            pair = self._stand_ins[id(buffer)] = buffer, stand_in
        return pair[1]

    def keep(self, written: Iterable[Buffer], writer: Handle) -> None:
        """Copy back what the launch has written, as far as that is known."""
        for buffer in written:
            _, stand_in = self._stand_ins.get(id(buffer), (None, None))
            if stand_in is not None and stand_in.has_data:
                buffer.know(stand_in.bytes, writer)
