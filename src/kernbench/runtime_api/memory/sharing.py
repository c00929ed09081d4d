"""Which memory of a SIP the kernels of others may reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.memory import Buffer


@dataclass(slots=True, eq=False)
class Sharing:
    """The value of ``Buffer.symmetric``: which rank shares the memory, and with which SIPs."""

    rank: int
    """The owner."""
    sips: set[int] = field(default_factory=set)
    """SIPs whose ranks it was exchanged with; empty before the rendezvous."""


def unreachable(buffer: Buffer, sip_id: int) -> str:
    """Return why kernels of another SIP may not reach a buffer, and what to do; "" if they may."""
    sharing: Sharing | None = buffer.symmetric
    if sharing is None:
        return (
            "kernels reach other SIPs only through symmetric memory; allocate it with "
            "torch.distributed.symmetric_memory.empty, and let every rank rendezvous"
        )
    if not sharing.sips:
        return (
            f"rank {sharing.rank} has not shared it; every rank of the group must call "
            "torch.distributed.symmetric_memory.rendezvous on its part"
        )
    if sip_id not in sharing.sips:
        return (
            f"rank {sharing.rank} has shared it with the ranks on SIPs "
            f"{', '.join(map(str, sorted(sharing.sips)))} only; rendezvous in a group with both"
        )
    return ""
