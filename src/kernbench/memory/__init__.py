"""Virtual addresses, the HBM allocator of a SIP, and the bytes of live buffers."""

from kernbench.memory.buffers import POISON, Buffer, DeviceMemory, sip_base, sip_of
from kernbench.memory.byte_pool import BytePool

__all__ = ["POISON", "Buffer", "BytePool", "DeviceMemory", "sip_base", "sip_of"]
