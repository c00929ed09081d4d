"""Virtual addresses, the HBM allocator of a SIP, and the bytes of live buffers."""

from kernbench.memory.buffers import Buffer, DeviceMemory, sip_base, sip_of

__all__ = ["Buffer", "DeviceMemory", "sip_base", "sip_of"]
