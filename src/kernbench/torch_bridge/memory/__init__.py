"""Memory of simulated devices as PyTorch's caching allocator would assign it; the host's, freed."""

from kernbench.torch_bridge.memory.allocator import (
    BlockObserver,
    CachingAllocator,
    DeviceFullError,
    MemoryBlock,
    PrivatePool,
)
from kernbench.torch_bridge.memory.devices import Memories
from kernbench.torch_bridge.memory.settings import AllocatorSettings
