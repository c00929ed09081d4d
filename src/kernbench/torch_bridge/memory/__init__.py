"""Memory of simulated devices as PyTorch's caching allocator would assign it."""

from kernbench.torch_bridge.memory.allocator import (
    CachingAllocator,
    DeviceFullError,
    MemoryBlock,
    PrivatePool,
)
from kernbench.torch_bridge.memory.devices import (
    Memories,
    SharedDevice,
    shown,
)

__all__ = [
    "CachingAllocator",
    "DeviceFullError",
    "Memories",
    "MemoryBlock",
    "PrivatePool",
    "SharedDevice",
    "shown",
]
