"""What a tensor asks of the run that made it."""

from __future__ import annotations

from typing import Any, Protocol

from kernbench.clock import Handle
from kernbench.dtypes import Array
from kernbench.hardware import Machine
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.tensors.tensor import Tensor


class TensorContext(Protocol):
    """What tensors, and the operators on them, ask of the RuntimeContext that made them."""

    @property
    def run(self) -> Run: ...

    @property
    def machine(self) -> Machine: ...

    def empty(self, *size: Any, **options: Any) -> Tensor:
        """Return a tensor without writing it."""

    def zeros(self, *size: Any, **options: Any) -> Tensor:
        """Return a tensor of zeros."""

    def from_numpy(self, array: Array, **options: Any) -> Tensor:
        """Return a tensor with the elements of a numpy array."""

    def launch(
        self,
        name: str,
        kernel: Any,
        *args: Any,
        grid: Any = None,
        attributes: Any = None,
        **constexprs: Any,
    ) -> Handle:
        """Do ``kernel[grid](*args, **constexprs)`` and call the launch ``name``."""
