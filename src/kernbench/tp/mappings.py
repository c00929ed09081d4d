"""The edges of tensor-parallel regions: their mappings forward and backward.

Each mapping is called like a function and has its gradient as a method::

    y = gather_from_tensor_model_parallel_region(x)
    grad_x = gather_from_tensor_model_parallel_region.backward(grad_y)

Mappings come in conjugate pairs: the backward of one is the forward of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernbench.runtime_api import Tensor
from kernbench.tp.primitives import (
    InFlight,
    all_reduce,
    gather_first_dim,
    gather_last_dim,
    reduce_scatter_first_dim,
    reduce_scatter_last_dim,
    split_first_dim,
    split_last_dim,
    start_all_reduce,
    start_gather_first_dim,
    start_reduce_scatter_first_dim,
)

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mapping:
    """A step of a tensor-parallel program, and the step its gradient takes.

    Reductions are made in place: the argument of an all-reducing step is also its result.
    """

    name: str
    forward: Step = field(repr=False)
    backward: Step = field(repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``forward(x)``."""
        return self.forward(x)

    def start(self, x: Tensor) -> InFlight:
        """Start ``forward(x)``, so that kernels can overlap with its collective."""
        return _start(self.forward, x)

    def start_backward(self, grad: Tensor) -> InFlight:
        """Start ``backward(grad)``."""
        return _start(self.backward, grad)


_STARTS: dict[Step, Callable[[Tensor], InFlight]] = {
    all_reduce: start_all_reduce,
    gather_first_dim: start_gather_first_dim,
    reduce_scatter_first_dim: start_reduce_scatter_first_dim,
}


def _start(step: Step, x: Tensor) -> InFlight:
    """Start a step if it is a single collective; complete others at once."""
    starting = _STARTS.get(step)
    return InFlight(step(x)) if starting is None else starting(x)


def _same(x: Tensor) -> Tensor:
    return x


copy_to_tensor_model_parallel_region = Mapping(
    "copy_to_tensor_model_parallel_region", _same, all_reduce
)
"""Every rank uses the same ``x``: its gradient is the sum of theirs."""

reduce_from_tensor_model_parallel_region = Mapping(
    "reduce_from_tensor_model_parallel_region", all_reduce, _same
)
"""Every rank has a partial sum, and all get the whole."""

scatter_to_tensor_model_parallel_region = Mapping(
    "scatter_to_tensor_model_parallel_region", split_last_dim, gather_last_dim
)
"""Each rank takes its part of the last dim."""

gather_from_tensor_model_parallel_region = Mapping(
    "gather_from_tensor_model_parallel_region", gather_last_dim, split_last_dim
)
"""All ranks get all parts of the last dim, and use them alike."""

all_gather_last_dim_from_tensor_parallel_region = Mapping(
    "all_gather_last_dim_from_tensor_parallel_region", gather_last_dim, reduce_scatter_last_dim
)
"""All ranks get all parts of the last dim, and each uses them differently."""

reduce_scatter_last_dim_to_tensor_parallel_region = Mapping(
    "reduce_scatter_last_dim_to_tensor_parallel_region", reduce_scatter_last_dim, gather_last_dim
)
"""Every rank has a partial sum, and each gets its part of the whole's last dim."""

scatter_to_sequence_parallel_region = Mapping(
    "scatter_to_sequence_parallel_region", split_first_dim, gather_first_dim
)
"""Each rank takes its tokens (the first dim)."""

gather_output_from_sequence_parallel_region = Mapping(
    "gather_output_from_sequence_parallel_region", gather_first_dim, split_first_dim
)
"""All ranks get all tokens, and use them alike.

Megatron spells it ``gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=False)``.
"""

gather_from_sequence_parallel_region = Mapping(
    "gather_from_sequence_parallel_region", gather_first_dim, reduce_scatter_first_dim
)
"""All ranks get all tokens, and each uses them differently (a parallel layer)."""

reduce_scatter_to_sequence_parallel_region = Mapping(
    "reduce_scatter_to_sequence_parallel_region", reduce_scatter_first_dim, gather_first_dim
)
"""Every rank has a partial sum for all tokens, and each gets the whole for its own."""
