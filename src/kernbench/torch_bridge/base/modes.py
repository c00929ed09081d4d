"""What the bridge's dispatch modes share."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DIFFERENTIATING = (
    torch._C._dispatch_tls_local_include_set(),
    torch._C._dispatch_tls_local_exclude_set(),
)
"""The default dispatch keys of C++ in a thread, which a replay of a graph changes, and a kernel
that is below autograd."""

graph_task = torch._C._current_graph_task_id
"""Returns the number of the backward that this thread works for, or ``NO_BACKWARD``."""
NO_BACKWARD = -1


class Mode(TorchDispatchMode):
    """A dispatch mode that PyTorch's compiler never looks at."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Looking for the compiler would take longer than the operation.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # What a program compiles is compiled below its observer, too.
        return True
