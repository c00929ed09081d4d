"""The memory at an address that a program or its data holds."""

from __future__ import annotations

from kernbench.errors import BadPointerError, UnreachableError
from kernbench.memory import Buffer, sip_of
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.memory.storage import unreachable

NO_TENSOR = (
    "belongs to no live tensor of this run; was the tensor freed, or the pointer made in another "
    "run?"
)
"""What errors say after an address that points to no tensor."""


def buffer_at(run: Run, address: int, sip_id: int) -> Buffer:
    """Return the live memory that holds an address, for a kernel on a SIP.

    Raises:
        BadPointerError: There is none.
        UnreachableError: It is another SIP's, which has not shared it.
    """
    lent = run.lent.find(address, sip_id)
    if lent is not None:
        return lent
    owner = sip_of(address)
    if not 0 <= owner < run.machine.num_sips:
        raise BadPointerError(f"address {address:#x} {NO_TENSOR}")
    buffer = run.devices.memory(owner).find(address)
    if owner != sip_id:
        why_not = unreachable(buffer, sip_id)
        if why_not:
            raise UnreachableError(f"lies in {buffer.label} of SIP {owner}; {why_not}")
    return buffer
