"""What ``tensor.cpu()`` returns: the elements in host memory."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from kernbench.runtime_api.memory.storage import Array


class HostArray(np.ndarray[Any, Any]):
    """A numpy array with the methods that host tensors of PyTorch have beside an array's."""

    def numpy(self) -> Array:
        """Return it as a plain array, of the same memory."""
        return self.view(np.ndarray)

    def cpu(self) -> Self:
        """Return it as it is: it is on the host."""
        return self

    def detach(self) -> Self:
        """Return it as it is: it has no gradients."""
        return self
