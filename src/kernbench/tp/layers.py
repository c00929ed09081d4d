"""Linear layers whose weights are split over the tensor-parallel group.

The numpy runtime records no graph, so a layer's gradient is a method: ``forward`` keeps its input,
``backward`` takes the gradient of the output of the latest forward, stores the gradients of the
parameters and returns that of the input. Weights are ``(in_features, out_features)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from kernbench import ops
from kernbench.dtypes import DType, as_dtype
from kernbench.errors import KernbenchError, UsageError
from kernbench.memory import Phase
from kernbench.policy import DPPolicy
from kernbench.runtime_api import RuntimeContext, Tensor, current_context, keep_for
from kernbench.tp.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.parallel_state import get_parallel_state
from kernbench.tp.sharding import (
    FusedPart,
    ShardSpec,
    check_full_shape,
    column_parallel,
    extract,
    row_parallel,
)


class BackwardError(KernbenchError, RuntimeError):
    """A layer's backward was called without a forward before it."""


class ParallelLayer(ABC):
    """The base class of layers whose weight is split.

    Attributes:
        weight: This rank's shard.
        bias: This rank's part of the bias, or None.
        weight_grad: Gradient of ``weight`` from the latest backward, or None.
        bias_grad: Gradient of ``bias`` from the latest backward, or None.
    """

    def __init__(
        self,
        weight: ShardSpec,
        bias: ShardSpec | None,
        dtype: str | DType,
        dp: DPPolicy | None,
        torch: RuntimeContext | None,
    ) -> None:
        kind = type(self).__name__
        if min(weight.shape) < 1:
            raise UsageError(f"{kind}: sizes must be at least 1, but got {weight.shape}")
        self._run = torch or current_context()
        self._weight_spec = weight
        self._bias_spec = bias
        self.dtype = as_dtype(dtype)
        self.weight: Tensor = self._run.zeros(
            weight.local_shape(), dtype=self.dtype, dp=dp, name=f"{kind}.weight"
        )
        self.bias: Tensor | None = None
        if bias is not None:
            self.bias = self._run.zeros(bias.local_shape(), dtype=self.dtype, name=f"{kind}.bias")
        keep_for(Phase.WEIGHTS, self.weight, self.bias)
        self.weight_grad: Tensor | None = None
        self.bias_grad: Tensor | None = None
        self._saved: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``forward(x)``."""
        return self.forward(x)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""

    def load_full(self, weight: Any, bias: Any = None) -> None:
        """Copy this rank's shards of a full weight, and of a full bias, to the device.

        Raises:
            UsageError: A shape that is not the full one, or a bias for a layer without.
        """
        if (bias is not None) != (self.bias is not None):
            has, got = ("a", "none") if self.bias is not None else ("no", "one")
            raise UsageError(f"{type(self).__name__} has {has} bias, but load_full got {got}")
        self._load(self.weight, self._weight_spec, weight)
        if self.bias is not None and self._bias_spec is not None:
            self._load(self.bias, self._bias_spec, bias)

    def parameters(self) -> list[Tensor]:
        """Return this rank's weight, and its bias if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def gradients(self) -> list[Tensor]:
        """Return the gradients of :meth:`parameters`, in that order."""
        grads = [self.weight_grad] if self.bias is None else [self.weight_grad, self.bias_grad]
        known = [grad for grad in grads if grad is not None]
        if len(known) < len(grads):
            raise BackwardError(f"{type(self).__name__} has no gradients yet; call backward first")
        return known

    def _load(self, target: Tensor, spec: ShardSpec, full: Any) -> None:
        full = np.asarray(full)
        if self._run.has_data:
            shard = extract(full, spec, get_parallel_state().tensor.rank)
            target.copy_(shard.astype(self.dtype.numpy))
        else:
            # The same copy; weights of any size take no host memory.
            check_full_shape(full, spec)
            target.copy_(np.broadcast_to(self.dtype.numpy.type(0), target.shape))

    def _take_saved(self) -> Tensor:
        """Return what forward saved, and drop it."""
        saved, self._saved = self._saved, None
        if saved is None:
            raise BackwardError(
                f"{type(self).__name__}.backward needs a forward before it, and each forward "
                "serves one backward"
            )
        return saved

    def _check_last_dim(self, x: Tensor, features: int, what: str) -> None:
        if not x.shape or x.shape[-1] != features:
            raise UsageError(
                f"{type(self).__name__} expects {what} whose last dim is {features}, "
                f"but got shape {tuple(x.shape)}"
            )
        if 0 in x.shape:
            raise UsageError(
                f"{type(self).__name__} expects {what} with at least 1 token, "
                f"but got shape {tuple(x.shape)}"
            )


class ColumnParallelLinear(ParallelLayer):
    """``x @ W + b`` with the columns of ``W``, hence the output features, split over the ranks.

    Every rank gives the same ``x`` of shape ``(..., in_features)`` and gets its
    ``(..., out_features / ranks)`` of the output.

    Args:
        in_features: Rows of the weight.
        out_features: Columns of the full weight.
        bias: Add a bias, split as the columns are.
        gather_output: Give every rank the whole output.
        dtype: Of weight and bias.
        sequence_parallel: Each rank gives its tokens (first dim) of ``x``; they are gathered
            here, and once more in backward, so that only the rank's own tokens are kept.
        torch: The run; None for the active one.
        dp: How the weight lies over the cubes and PEs of the SIP.
        parts: What is fused along the output features, so that each rank gets its part of each.
        skip_bias_add: Leave the bias to the caller, who adds it in a kernel with something else.

    Raises:
        UsageError: ``out_features`` is not divisible by the number of ranks, or
            ``gather_output`` with ``sequence_parallel``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        gather_output: bool = False,
        dtype: str | DType = "f16",
        sequence_parallel: bool = False,
        torch: RuntimeContext | None = None,
        dp: DPPolicy | None = None,
        *,
        parts: tuple[FusedPart, ...] = (),
        skip_bias_add: bool = False,
    ) -> None:
        if gather_output and sequence_parallel:
            raise UsageError(
                "gather_output must be False with sequence_parallel: the row-parallel layer "
                "after this one takes the split output"
            )
        size = get_parallel_state().tensor.size
        weight_spec = column_parallel(in_features, out_features, size, parts)
        bias_spec = ShardSpec((out_features,), 0, size, parts) if bias else None
        super().__init__(weight_spec, bias_spec, dtype, dp, torch)
        self._added_bias = None if skip_bias_add else self.bias
        self.in_features = in_features
        self.out_features = out_features
        self.local_out_features = weight_spec.local_shape()[1]
        self.gather_output = gather_output
        self._enter = (
            gather_from_sequence_parallel_region
            if sequence_parallel
            else copy_to_tensor_model_parallel_region
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., out_features / ranks)``, or all features with ``gather_output``."""
        self._check_last_dim(x, self.in_features, "an input")
        self._saved = x
        keep_for(Phase.ACTIVATIONS, x)
        y = ops.matmul(self._enter(x), self.weight, self._added_bias)
        return gather_from_tensor_model_parallel_region(y) if self.gather_output else y

    def backward(self, grad_output: Tensor) -> Tensor:
        """Return the gradient of the input, summed over the ranks; keep those of the parameters.

        The collectives overlap with the matmul that does not need them.
        """
        features = self.out_features if self.gather_output else self.local_out_features
        self._check_last_dim(grad_output, features, "an output gradient")
        gathering = self._enter.start(self._take_saved())
        if self.gather_output:
            grad_output = gather_from_tensor_model_parallel_region.backward(grad_output)
        grad_input = ops.matmul(grad_output, self.weight.T)
        x = gathering.wait()
        summing = self._enter.start_backward(grad_input)
        self.weight_grad = _weight_gradient(x, grad_output)
        if self.bias is not None:
            self.bias_grad = _bias_gradient(grad_output)
        keep_for(Phase.GRADIENTS, self.weight_grad, self.bias_grad)
        return summing.wait()


class RowParallelLinear(ParallelLayer):
    """``x @ W + b`` with the rows of ``W``, hence the input features, split over the ranks.

    Each rank multiplies its ``(..., in_features / ranks)`` of the input; the partial products are
    summed over the ranks, and then the bias, which every rank has whole, is added once.

    Args:
        in_features: Rows of the full weight.
        out_features: Columns of the weight.
        bias: Add a bias.
        input_is_parallel: Each rank gives its part of the input; otherwise all give the whole,
            which is split here.
        dtype: Of weight and bias.
        sequence_parallel: Each rank gets its tokens (first dim) of the output: a
            reduce_scatter takes the place of the all_reduce.
        torch: The run; None for the active one.
        dp: How the weight lies over the cubes and PEs of the SIP.
        skip_bias_add: Leave the bias to the caller, who adds it in a kernel with something else.

    Raises:
        UsageError: ``in_features`` is not divisible by the number of ranks, or
            ``sequence_parallel`` with an input that is not parallel.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        input_is_parallel: bool = True,
        dtype: str | DType = "f16",
        sequence_parallel: bool = False,
        torch: RuntimeContext | None = None,
        dp: DPPolicy | None = None,
        *,
        skip_bias_add: bool = False,
    ) -> None:
        if sequence_parallel and not input_is_parallel:
            raise UsageError("input_is_parallel must be True with sequence_parallel")
        size = get_parallel_state().tensor.size
        weight_spec = row_parallel(in_features, out_features, size)
        bias_spec = ShardSpec((out_features,), None, size) if bias else None
        super().__init__(weight_spec, bias_spec, dtype, dp, torch)
        self._added_bias = None if skip_bias_add else self.bias
        self.in_features = in_features
        self.out_features = out_features
        self.local_in_features = weight_spec.local_shape()[0]
        self.input_is_parallel = input_is_parallel
        self._leave = (
            reduce_scatter_to_sequence_parallel_region
            if sequence_parallel
            else reduce_from_tensor_model_parallel_region
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., out_features)``: bitwise equal on every rank, or each rank's tokens."""
        features = self.local_in_features if self.input_is_parallel else self.in_features
        self._check_last_dim(x, features, "an input")
        if not self.input_is_parallel:
            x = scatter_to_tensor_model_parallel_region(x)
        self._saved = x
        keep_for(Phase.ACTIVATIONS, x)
        y = self._leave(ops.matmul(x, self.weight))
        return y if self._added_bias is None else ops.add(y, self._added_bias)

    def backward(self, grad_output: Tensor) -> Tensor:
        """Return the gradient of the input, in the form the input had; keep the parameters'."""
        self._check_last_dim(grad_output, self.out_features, "an output gradient")
        x = self._take_saved()
        grad_output = self._leave.backward(grad_output)
        self.weight_grad = _weight_gradient(x, grad_output)
        if self.bias is not None:
            # Of all tokens: under sequence parallelism the gathered gradient is at hand, and the
            # bias needs no all_reduce of its own.
            self.bias_grad = _bias_gradient(grad_output)
        keep_for(Phase.GRADIENTS, self.weight_grad, self.bias_grad)
        grad_input = ops.matmul(grad_output, self.weight.T)
        if self.input_is_parallel:
            return grad_input
        return scatter_to_tensor_model_parallel_region.backward(grad_input)


def _weight_gradient(x: Tensor, grad_output: Tensor) -> Tensor:
    return ops.matmul(_as_rows(x).T, _as_rows(grad_output))


def _bias_gradient(grad_output: Tensor) -> Tensor:
    return ops.sum(_as_rows(grad_output), dim=0)


def _as_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
