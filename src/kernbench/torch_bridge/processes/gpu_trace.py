"""PyTorch's trace of a GPU, and its own sanitizer of streams, which reads the trace.

C++ of a CUDA build calls what a program has registered with ``torch.cuda._gpu_trace``.
"""

from __future__ import annotations

import os
from typing import Any

import torch.cuda._gpu_trace as trace
from torch import Tensor

from kernbench.clock import Stream as Queue
from kernbench.torch_bridge.base.versions import CUDA_SANITIZER
from kernbench.torch_bridge.processes.process import Process


def fire(registry: Any, *args: Any) -> None:
    """Call what is registered for an event of the trace."""
    if registry.callback_list:
        registry.fire_callbacks(*args)


def host_waits(queue: Queue) -> None:
    """Tell of a host that has waited for a stream."""
    fire(trace.StreamSynchronizationCallbacks, id(queue))


class _Freed:
    """An attribute of a storage: when it goes, so does what the sanitizer knows of its memory."""

    def __init__(self, accesses: dict[int, Any], start: int, size_bytes: int) -> None:
        self._start, self._stop = start, start + size_bytes
        self._accesses = accesses

    def __del__(self) -> None:
        # Missing if an interrupt came before it was set; it is set last.
        accesses: dict[int, Any] = getattr(self, "_accesses", {})
        for address in [access for access in accesses if self._start <= access < self._stop]:
            accesses.pop(address, None)


def sanitizer_of(process: Process) -> Any:
    """Return PyTorch's own sanitizer for the main thread of a process whose variables ask for it.

    None for others. A GPU build enables it as PyTorch is imported, which here happens once for all
    processes.
    """
    is_asked = os.fsencode(CUDA_SANITIZER) in process.environ
    if not is_asked or process.thread is not process.main_thread:
        return None
    from torch.cuda._sanitizer import CUDASanitizerDispatchMode

    class OwnSanitizer(CUDASanitizerDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            outputs = super().__torch_dispatch__(func, types, args, kwargs)
            # Memory of the host, where tensors are, is used again whatever streams do.
            for output in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
                if isinstance(output, Tensor) and output.is_cuda:
                    storage: Any = output.untyped_storage()
                    if getattr(storage, "_kernbench_freed", None) is None:
                        accesses = self.event_handler.tensors_accessed.accesses
                        where = storage.data_ptr(), storage.nbytes()
                        storage._kernbench_freed = _Freed(accesses, *where)
            return outputs

    return OwnSanitizer()
