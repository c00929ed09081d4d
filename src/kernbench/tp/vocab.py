"""Layers split over the vocabulary: the embedding, and the cross entropy of split logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench import ops
from kernbench.dtypes import DType, int32, int64
from kernbench.errors import UsageError
from kernbench.memory import Phase
from kernbench.policy import DPPolicy
from kernbench.runtime_api import RuntimeContext, Tensor, current_context, keep_for
from kernbench.tp.kernels import embedding_kernel, exp_sum_kernel, loss_kernel
from kernbench.tp.layers import BackwardError, ParallelLayer
from kernbench.tp.mappings import (
    all_reduce,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from kernbench.tp.parallel_state import get_parallel_state
from kernbench.tp.sharding import FusedPart, row_parallel

_ROWS_PER_PROGRAM = 128


def _place(num_local: int) -> tuple[int, int, int, int]:
    """Return a rank's arguments of the kernels: first, num_local, is_first, is_last."""
    axis = get_parallel_state().tensor
    is_first, is_last = axis.rank == 0, axis.rank == axis.size - 1
    return axis.rank * num_local, num_local, int(is_first), int(is_last)


def _check_ids(ids: Tensor, what: str) -> Tensor:
    if ids.dtype not in (int32, int64):
        raise UsageError(f"{what} must be int32 or int64, but got {ids.dtype}")
    if 0 in ids.shape:
        raise UsageError(f"{what} must have at least 1 element, but got shape {tuple(ids.shape)}")
    return ids.reshape(-1).contiguous()


class VocabParallelEmbedding(ParallelLayer):
    """Rows of a table, looked up by id, with the rows split over the ranks.

    Each rank looks up the ids it holds and gives zeros for the others; the sum over the ranks is
    the whole result. An id outside the vocabulary is an OutOfBoundsError.

    Args:
        num_embeddings: Rows of the full table.
        embedding_dim: Columns of the table.
        dtype: Of the table.
        sequence_parallel: Each rank gets its tokens (first dim) of the output.
        torch: The run; None for the active one.
        dp: How the table lies over the cubes and PEs of the SIP.

    Raises:
        UsageError: ``num_embeddings`` is not divisible by the number of ranks.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: str | DType = "f16",
        sequence_parallel: bool = False,
        torch: RuntimeContext | None = None,
        dp: DPPolicy | None = None,
    ) -> None:
        size = get_parallel_state().tensor.size
        rows = (FusedPart(num_embeddings, name="num_embeddings"),)
        super().__init__(
            row_parallel(num_embeddings, embedding_dim, size, rows), None, dtype, dp, torch
        )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self._leave = (
            reduce_scatter_to_sequence_parallel_region
            if sequence_parallel
            else reduce_from_tensor_model_parallel_region
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(*ids.shape, embedding_dim)`` for the ids ``x``, equal on all ranks."""
        ids = _check_ids(x, "embedding ids")
        self._saved = ids
        keep_for(Phase.ACTIVATIONS, ids)
        num_local, width = self.weight.shape
        num_tokens = ids.shape[0]
        out = self._run.empty((num_tokens, width), dtype=self.dtype)
        block_m, block_n = 16, _power_of_2(width, 256)
        self._run.launch(
            "vocab_parallel_embedding", embedding_kernel, out, self.weight, ids, *_place(num_local),
            num_tokens, width,
            BLOCK_M=block_m, BLOCK_N=block_n,
            grid=(_ceil_div(width, block_n), _ceil_div(num_tokens, block_m)),
        )  # fmt: skip
        return self._leave(out.reshape(*x.shape, width))

    def backward(self, grad_output: Tensor) -> None:
        """Keep the gradient of this rank's rows; ids have none."""
        self._check_last_dim(grad_output, self.embedding_dim, "an output gradient")
        ids = self._take_saved()
        num_local, width = self.weight.shape
        grad = self._leave.backward(grad_output).reshape(-1, width)
        self.weight_grad = ops.embedding_backward(grad, ids, num_local, _place(num_local)[0])
        keep_for(Phase.GRADIENTS, self.weight_grad)


@dataclass(frozen=True)
class _SavedLogits:
    logits: Tensor
    targets: Tensor
    maxima: Tensor
    sums: Tensor


class VocabParallelCrossEntropy:
    """The negative log-likelihood of each row's target, of logits split over the vocabulary.

    Two small all_reduces (row maxima; sums of exponentials with the targets' logits) take the
    place of gathering the logits. Statistics are float32 whatever the logits are. A target
    outside the vocabulary is an OutOfBoundsError.
    """

    def __init__(self, torch: RuntimeContext | None = None) -> None:
        self._run = torch or current_context()
        self._saved: _SavedLogits | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return ``forward(logits, targets)``."""
        return self.forward(logits, targets)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row in float32, shaped as ``targets``; the same on every rank.

        Args:
            logits: This rank's columns, ``(..., vocab_size / ranks)``.
            targets: Ids of the whole vocabulary, ``(...)``, which all ranks give alike.
        """
        if tuple(logits.shape[:-1]) != tuple(targets.shape) or not logits.shape:
            raise UsageError(
                f"logits {tuple(logits.shape)} must have the dims of targets "
                f"{tuple(targets.shape)} and this rank's vocabulary as last dim"
            )
        num_local = logits.shape[-1]
        if num_local < 1:
            raise UsageError("logits must have at least 1 vocabulary entry per rank, but got 0")
        rows = logits.reshape(-1, num_local).contiguous()
        ids = _check_ids(targets, "targets")
        num_rows = ids.shape[0]
        maxima = ops.row_max(rows)
        all_reduce(maxima, "max")
        sums = self._run.empty((2, num_rows), dtype="f32")
        self._run.launch(
            "cross_entropy_exp_sum", exp_sum_kernel, rows, ids, maxima, sums, *_place(num_local),
            num_rows,
            BLOCK_V=_power_of_2(num_local, 1024), grid=(num_rows,),
        )  # fmt: skip
        all_reduce(sums)
        loss = self._run.empty((num_rows,), dtype="f32")
        self._run.launch(
            "cross_entropy_loss", loss_kernel, sums, loss, num_rows,
            BLOCK=_ROWS_PER_PROGRAM, grid=(_ceil_div(num_rows, _ROWS_PER_PROGRAM),),
        )  # fmt: skip
        self._saved = _SavedLogits(rows, ids, maxima, sums)
        keep_for(Phase.ACTIVATIONS, rows, ids, maxima, sums)
        return loss.reshape(*targets.shape)

    def backward(self, grad_loss: Tensor) -> Tensor:
        """Return the gradient of this rank's logits, ``(..., vocab_size / ranks)``."""
        saved, self._saved = self._saved, None
        if saved is None:
            raise BackwardError(
                "VocabParallelCrossEntropy.backward needs a forward before it, and each forward "
                "serves one backward"
            )
        num_rows, num_local = saved.logits.shape
        if math.prod(grad_loss.shape) != num_rows:
            raise UsageError(
                f"the gradient must have one element per row ({num_rows}), "
                f"but got shape {tuple(grad_loss.shape)}"
            )
        grad = ops.cross_entropy_backward(
            saved.logits, saved.maxima, saved.sums[0], grad_loss.reshape(-1), saved.targets,
            _place(num_local)[0],
        )  # fmt: skip
        return grad.reshape(*grad_loss.shape, num_local)


def _power_of_2(size: int, most: int) -> int:
    """Return the power of two that holds ``size``, at most ``most``: the width of a tile."""
    return min(1 << (size - 1).bit_length(), most)


def _ceil_div(size: int, block: int) -> int:
    return -(-size // block)
