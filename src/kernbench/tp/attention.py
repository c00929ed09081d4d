"""Attention itself: from the fused projection of q, k and v to the output projection.

Heads are split over the tensor-parallel ranks, so nothing here communicates. Names of dims: B
batch, S tokens of a sequence, T = B * S, H and G this rank's query and key heads, D head size,
E = (H + 2 * G) * D, F = H * D.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kernbench import ops
from kernbench.errors import UsageError
from kernbench.memory import Phase
from kernbench.runtime_api import Tensor, keep_for
from kernbench.tp.layers import BackwardError

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines by position; see :func:`kernbench.ops.split_heads`."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """This rank's heads."""

    num_heads: int
    num_key_heads: int
    size: int

    @property
    def features(self) -> int:
        """Columns of the fused projection."""
        return (self.num_heads + 2 * self.num_key_heads) * self.size

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.num_heads * self.size


class Attention(ABC):
    """Computes the context of each token from a fused projection.

    Args:
        heads: This rank's heads.
        batch: Sequences of equal length that the tokens are of, one after the other.
        causal: A token sees those before it.
        keep_scores: Compute the matrix of scores, its softmax and the product with the values as
            three kernels, as stacks without a fused attention kernel do.
        rotary: Tables to rotate q and k by.
    """

    def __init__(
        self,
        heads: Heads,
        batch: int,
        *,
        causal: bool = True,
        keep_scores: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch must be at least 1, but got {batch}")
        self.heads = heads
        self.batch = batch
        self.causal = causal
        self.keep_scores = keep_scores
        self.rotary = rotary

    @abstractmethod
    def forward(self, fused_TE: Tensor, bias_E: Tensor | None) -> Tensor:
        """Return the context, (T, F)."""

    def backward(self, grad_TF: Tensor) -> Tensor:
        """Return the gradient of the fused projection, (T, E).

        Raises:
            BackwardError: It cannot be asked for.
        """
        raise BackwardError(f"{type(self).__name__} has no backward")

    def _sequence(self, fused: Tensor) -> int:
        """Return the number of tokens of a sequence."""
        if len(fused.shape) != 2 or fused.shape[1] != self.heads.features:
            raise UsageError(
                f"attention expects (tokens, {self.heads.features}), but got shape "
                f"{tuple(fused.shape)}"
            )
        tokens = fused.shape[0]
        if tokens % self.batch or not tokens:
            raise UsageError(
                f"{tokens} tokens cannot be divided into {self.batch} sequences of equal length"
            )
        return tokens // self.batch

    def _scores(self, q_BHSD: Tensor, k_BGKD: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Return the weights of all keys, (B, H, S, K)."""
        batch, heads, queries, size = q_BHSD.shape
        key_heads, keys = k_BGKD.shape[1:3]
        # Query heads that share a key head are more rows.
        rows = q_BHSD.view(batch, key_heads, heads // key_heads * queries, size)
        scores = ops.matmul(rows, k_BGKD.transpose(2, 3)).view(batch, heads, queries, keys)
        return ops.masked_softmax(scores, size**-0.5, self.causal, lengths_B)

    def _weighted(self, weights_BHSK: Tensor, v_BGKD: Tensor) -> Tensor:
        """Return the weighted sum of the values, (T, F)."""
        batch, heads, queries, keys = weights_BHSK.shape
        key_heads = v_BGKD.shape[1]
        rows = weights_BHSK.view(batch, key_heads, heads // key_heads * queries, keys)
        context = ops.matmul(rows, v_BGKD).view(batch, heads, queries, self.heads.size)
        return context.transpose(1, 2).contiguous().view(batch * queries, self.heads.width)

    def _empty_heads(self, like: Tensor, num_heads: int, queries: int) -> Tensor:
        shape = (self.batch, num_heads, queries, self.heads.size)
        return like.context.empty(shape, dtype=like.dtype)


@dataclass(frozen=True)
class _SavedAttention:
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor | None
    context: Tensor | None
    lse: Tensor | None


class TrainingAttention(Attention):
    """Attention among the tokens of a batch, with a gradient."""

    _saved: _SavedAttention | None = None

    def forward(self, fused_TE: Tensor, bias_E: Tensor | None) -> Tensor:
        seq = self._sequence(fused_TE)
        q, k, v = self._split(fused_TE, bias_E, seq)
        if self.keep_scores:
            weights = self._scores(q, k)
            self._saved = _SavedAttention(q, k, v, weights, None, None)
            keep_for(Phase.ACTIVATIONS, q, k, v, weights)
            return self._weighted(weights, v)
        shape = (self.batch, seq, self.heads.num_heads, self.heads.size)
        context = fused_TE.context.empty(shape, dtype=fused_TE.dtype)
        _, lse = ops.attention_with_lse(q, k, v, causal=self.causal, out=context.transpose(1, 2))
        self._saved = _SavedAttention(q, k, v, None, context.transpose(1, 2), lse)
        keep_for(Phase.ACTIVATIONS, q, k, v, context, lse)
        return context.view(self.batch * seq, self.heads.width)

    def backward(self, grad_TF: Tensor) -> Tensor:
        saved, self._saved = self._saved, None
        if saved is None:
            raise BackwardError("attention's backward needs a forward before it")
        seq = saved.q.shape[2]
        shape = (self.batch, seq, self.heads.num_heads, self.heads.size)
        grad = grad_TF.view(*shape).transpose(1, 2)
        if saved.weights is not None:
            grads = self._backward_of_scores(grad, saved, saved.weights)
        else:
            assert saved.context is not None
            assert saved.lse is not None
            grads = ops.attention_backward(
                grad, saved.q, saved.k, saved.v, saved.context, saved.lse, causal=self.causal
            )
        fused = grad_TF.context.empty((self.batch * seq, self.heads.features), dtype=grad_TF.dtype)
        ops.join_heads(*grads, fused, rotary=self.rotary)
        return fused

    def _split(self, fused: Tensor, bias: Tensor | None, seq: int) -> tuple[Tensor, ...]:
        heads, key_heads = self.heads.num_heads, self.heads.num_key_heads
        if bias is None and self.rotary is None and not self.keep_scores:
            # Read where they are.
            whole = fused.view(self.batch, seq, heads + 2 * key_heads, self.heads.size)
            sizes = (heads, key_heads, key_heads)
            starts = (0, heads, heads + key_heads)
            return tuple(
                whole.narrow(2, start, size).transpose(1, 2)
                for start, size in zip(starts, sizes, strict=True)
            )
        parts = [self._empty_heads(fused, number, seq) for number in (heads, key_heads, key_heads)]
        ops.split_heads(fused, parts[0], parts[1], parts[2], bias_E=bias, rotary=self.rotary)
        return tuple(parts)

    def _backward_of_scores(
        self, grad_BHSD: Tensor, saved: _SavedAttention, weights_BHSK: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, heads, seq, size = saved.q.shape
        key_heads = saved.k.shape[1]
        rows = (batch, key_heads, heads // key_heads * seq)
        grad = grad_BHSD.contiguous().view(*rows, size)
        weights = weights_BHSK.view(*rows, seq)
        grad_v = ops.matmul(weights.transpose(2, 3), grad)
        grad_weights = ops.matmul(grad, saved.v.transpose(2, 3)).view(*weights_BHSK.shape)
        slope = ops.softmax_backward(grad_weights, weights_BHSK, size**-0.5).view(*rows, seq)
        grad_q = ops.matmul(slope, saved.k).view(*saved.q.shape)
        grad_k = ops.matmul(slope.transpose(2, 3), saved.q.view(*rows, size))
        return grad_q, grad_k, grad_v


class PackedAttention(Attention):
    """Attention in a batch of packed sequences of different lengths.

    The projections see real tokens only; for attention they are put where the longest sequence has
    room for them. It stores the matrix of scores, and has no gradient.

    Args:
        rows: Place of each token among ``batch * seq``: its sequence times ``seq``, and its number
            in there; int32.
        lengths: Tokens of each sequence, int32.
        seq: Length of the longest sequence.
        heads, batch, causal: As for :class:`Attention`.
    """

    def __init__(
        self,
        rows: Tensor,
        lengths: Tensor,
        seq: int,
        heads: Heads,
        batch: int,
        *,
        causal: bool = False,
    ) -> None:
        super().__init__(heads, batch, causal=causal, keep_scores=True)
        self.rows = rows
        self.lengths = lengths
        self.seq = seq

    def forward(self, fused_TE: Tensor, bias_E: Tensor | None) -> Tensor:
        run = fused_TE.context
        counts = (self.heads.num_heads, self.heads.num_key_heads, self.heads.num_key_heads)
        # Padding has to be finite: its weights are 0.
        q, k, v = (
            run.zeros((self.batch, count, self.seq, self.heads.size), dtype=fused_TE.dtype)
            for count in counts
        )
        ops.split_heads(fused_TE, q, k, v, bias_E=bias_E, rows_T=self.rows)
        return ops.embedding(self._weighted(self._scores(q, k, self.lengths), v), self.rows)


class CachedAttention(Attention):
    """Attention over all tokens so far, with a KV cache; for inference.

    Args:
        keys: The cache, (B, G, room, D).
        values: The same of the values.
        num_splits: Programs that share the keys of a tile of queries; by size when None.
        heads, batch, causal, keep_scores, rotary: As for :class:`Attention`. Single tokens are
            decoded without a matrix of scores in any case.

    Attributes:
        position: Tokens in the cache.
    """

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        heads: Heads,
        batch: int,
        *,
        causal: bool = True,
        keep_scores: bool = False,
        rotary: Rotary | None = None,
        num_splits: int | None = None,
    ) -> None:
        super().__init__(heads, batch, causal=causal, keep_scores=keep_scores, rotary=rotary)
        expected = (batch, heads.num_key_heads, heads.size)
        for cache in (keys, values):
            shape = tuple(cache.shape)
            if len(shape) != 4 or (shape[0], shape[1], shape[3]) != expected:
                raise UsageError(
                    f"the cache must be ({batch}, {heads.num_key_heads}, room, {heads.size}), "
                    f"but got {shape}"
                )
        self.keys = keys
        self.values = values
        keep_for(Phase.KV_CACHE, keys, values)
        self.num_splits = num_splits
        self.position = 0

    def forward(self, fused_TE: Tensor, bias_E: Tensor | None) -> Tensor:
        seq = self._sequence(fused_TE)
        end, room = self.position + seq, self.keys.shape[2]
        if end > room:
            raise UsageError(
                f"the cache has room for {room} tokens and holds {self.position}; {seq} more do "
                "not fit"
            )
        new = [tensor.narrow(2, self.position, seq) for tensor in (self.keys, self.values)]
        keys, values = (tensor.narrow(2, 0, end) for tensor in (self.keys, self.values))
        keep_scores = self.keep_scores and seq > 1
        shape = (self.batch, seq, self.heads.num_heads, self.heads.size)
        if keep_scores:
            q = self._empty_heads(fused_TE, self.heads.num_heads, seq)
        else:
            q = fused_TE.context.empty(shape, dtype=fused_TE.dtype).transpose(1, 2)
        ops.split_heads(
            fused_TE, q, new[0], new[1],
            bias_E=bias_E, rotary=self.rotary, position=self.position,
        )  # fmt: skip
        self.position = end
        if keep_scores:
            return self._weighted(self._scores(q, keys), values)
        context = fused_TE.context.empty(shape, dtype=fused_TE.dtype)
        ops.attention(
            q, keys, values,
            causal=self.causal, num_splits=self.num_splits, out=context.transpose(1, 2),
        )  # fmt: skip
        return context.view(self.batch * seq, self.heads.width)
