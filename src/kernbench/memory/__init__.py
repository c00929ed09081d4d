"""Virtual addresses, the HBM allocator of a SIP, and the bytes of live buffers."""

from kernbench.memory.allocations import (
    FIELDS,
    NEVER,
    Allocation,
    AllocationLog,
    Layout,
    LiveAllocation,
    Phase,
    Place,
    steps_in_use,
)
from kernbench.memory.buffers import POISON, Buffer, DeviceMemory, sip_base, sip_of
from kernbench.memory.byte_pool import BytePool
