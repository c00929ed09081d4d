"""A tensor-parallel transformer: the sizes and the weights that one rank holds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from kernbench.dtypes import as_dtype
from kernbench.errors import UsageError
from kernbench.tp.sharding.shards import FusedPart, ShardSpec, column_parallel, divide, row_parallel


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A decoder-only transformer split over ``tp_size`` ranks as Megatron does.

    Heads and the intermediate size are split over columns, the projections back to the hidden
    size over rows, the embedding and the output layer over the vocabulary; norms are whole on
    every rank. Fewer KV heads than ranks are replicated when the ranks are a multiple of them.

    Raises:
        UsageError: A size that does not split; names both numbers.

    Attributes:
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the MLP.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; ``num_heads`` when None.
        head_dim: ``hidden_size // num_heads`` when None.
        vocab_size: Rows of the embedding (pad it to a multiple of ``tp_size``).
        num_layers: Transformer blocks.
        tp_size: Tensor-parallel ranks.
        dtype: Of weights and activations.
        gated: The MLP has a gate next to the up projection, fused into one weight.
        bias: Projections have biases.
        tied_embeddings: The output layer is the embedding.
        sequence_parallel: Between the parallel regions the tokens are split over the ranks.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    num_layers: int
    tp_size: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str = "bf16"
    gated: bool = True
    bias: bool = False
    tied_embeddings: bool = False
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if self.tp_size < 1:
            raise UsageError(f"tensor parallel size must be at least 1, but got {self.tp_size}")
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if self.head_dim is None:
            head_dim = divide(self.hidden_size, self.num_heads, "hidden_size", "num_heads")
            object.__setattr__(self, "head_dim", head_dim)
        for field in dataclasses.fields(self):
            size = getattr(self, field.name)
            if isinstance(size, int) and not isinstance(size, bool) and size < 1:
                raise UsageError(f"{field.name} must be at least 1, but got {size}")
        as_dtype(self.dtype)
        divide(self.num_heads, self._kv_heads, "num_heads", "num_kv_heads")
        self.kv_replicas  # noqa: B018  (refuses heads that do not split)
        for name in ("num_heads", "intermediate_size", "vocab_size"):
            divide(getattr(self, name), self.tp_size, name, "tensor parallel size")

    @property
    def _kv_heads(self) -> int:
        assert self.num_kv_heads is not None
        return self.num_kv_heads

    @property
    def _head_dim(self) -> int:
        assert self.head_dim is not None
        return self.head_dim

    @property
    def _kv_part(self) -> FusedPart:
        size = self._kv_heads * self._head_dim
        return FusedPart(size, self._head_dim, replicable=True, name="num_kv_heads")

    @property
    def itemsize(self) -> int:
        """Bytes per element of a weight."""
        return as_dtype(self.dtype).itemsize

    @property
    def kv_replicas(self) -> int:
        """Ranks that hold the same KV head; their gradients must be summed."""
        return self._kv_part.num_replicas(self.tp_size)

    @property
    def local_num_heads(self) -> int:
        return self.num_heads // self.tp_size

    @property
    def local_num_kv_heads(self) -> int:
        return self._kv_heads * self.kv_replicas // self.tp_size

    @property
    def local_q_size(self) -> int:
        """Columns of this rank's query projection, and rows of its output projection."""
        return self.local_num_heads * self._head_dim

    @property
    def local_kv_size(self) -> int:
        """Columns of this rank's key projection, and of its value projection."""
        return self.local_num_kv_heads * self._head_dim

    @property
    def local_qkv_size(self) -> int:
        return self.local_q_size + 2 * self.local_kv_size

    @property
    def local_intermediate_size(self) -> int:
        return self.intermediate_size // self.tp_size

    @property
    def local_vocab_size(self) -> int:
        return self.vocab_size // self.tp_size

    @cached_property
    def layer_weights(self) -> dict[str, ShardSpec]:
        """How each weight of one block is split, by name."""
        tp, hidden, inter = self.tp_size, self.hidden_size, self.intermediate_size
        q_size = self.num_heads * self._head_dim
        q_part = FusedPart(q_size, self._head_dim, name="num_heads")
        qkv_parts = (q_part, self._kv_part, self._kv_part)
        inter_part = FusedPart(inter, name="intermediate_size")
        up_parts = (inter_part, inter_part) if self.gated else (inter_part,)
        up_name = "mlp.gate_up" if self.gated else "mlp.up"
        qkv_size = sum(part.size for part in qkv_parts)
        up_size = sum(part.size for part in up_parts)
        weights = {
            "attention.norm": ShardSpec((hidden,), None, tp),
            "attention.qkv": column_parallel(hidden, qkv_size, tp, qkv_parts),
            "attention.out": row_parallel(q_size, hidden, tp, (q_part,)),
            "mlp.norm": ShardSpec((hidden,), None, tp),
            up_name: column_parallel(hidden, up_size, tp, up_parts),
            "mlp.down": row_parallel(inter, hidden, tp, (inter_part,)),
        }
        if self.bias:
            weights["attention.qkv.bias"] = ShardSpec((qkv_size,), 0, tp, qkv_parts)
            weights["attention.out.bias"] = ShardSpec((hidden,), None, tp)
            weights[f"{up_name}.bias"] = ShardSpec((up_size,), 0, tp, up_parts)
            weights["mlp.down.bias"] = ShardSpec((hidden,), None, tp)
        return weights

    @cached_property
    def outer_weights(self) -> dict[str, ShardSpec]:
        """How each weight outside the blocks is split, by name."""
        tp = self.tp_size
        vocab_part = (FusedPart(self.vocab_size, name="vocab_size"),)
        weights = {
            "embedding": row_parallel(self.vocab_size, self.hidden_size, tp, vocab_part),
            "final_norm": ShardSpec((self.hidden_size,), None, tp),
        }
        if not self.tied_embeddings:
            weights["output"] = column_parallel(self.hidden_size, self.vocab_size, tp, vocab_part)
        return weights

    @property
    def parameters_per_rank(self) -> int:
        """Elements of all weights that one rank holds."""
        layer = sum(spec.num_local_elements() for spec in self.layer_weights.values())
        outer = sum(spec.num_local_elements() for spec in self.outer_weights.values())
        return self.num_layers * layer + outer

    @property
    def bytes_per_rank(self) -> int:
        """Bytes of all weights that one rank holds."""
        return self.parameters_per_rank * self.itemsize
