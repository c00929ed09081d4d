"""Memory of simulated devices as PyTorch's caching allocator would hand it out."""

from kernbench.torch_bridge.memory.allocator import (
    Block,
    CachingAllocator,
    DeviceFullError,
    PrivatePool,
)
from kernbench.torch_bridge.memory.devices import (
    Memories,
    SharedDevice,
    shown,
)

__all__ = [
    "Block",
    "CachingAllocator",
    "DeviceFullError",
    "Memories",
    "PrivatePool",
    "SharedDevice",
    "shown",
]
