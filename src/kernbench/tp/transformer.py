"""One block of a transformer, split over the tensor-parallel ranks as Megatron does.

The kernels between the projections are fused as serving and training stacks fuse them: a bias is
added by the kernel that needs the result.
"""

from __future__ import annotations

from typing import Any, Literal

from kernbench import ops
from kernbench.memory import Phase
from kernbench.runtime_api import RuntimeContext, Tensor, current_context, keep_for
from kernbench.tp.attention import Attention, Heads
from kernbench.tp.layers import BackwardError, ColumnParallelLinear, RowParallelLinear
from kernbench.tp.mappings import copy_to_tensor_model_parallel_region
from kernbench.tp.sharding import FusedPart, TransformerConfig

NormName = Literal["layer", "rms"]


class TransformerLayer:
    """Attention and MLP, each with a norm before it and a residual around it.

    ``h = x + out(attention(qkv(norm(x))))``, then ``h + down(activation(up(norm(h))))``: the
    activation is GELU, or SiLU times a gate where ``config.gated``. With ``post_norm`` the norms
    follow the residuals, as in BERT.

    Args:
        config: The sizes; ``tp_size`` must be that of the group.
        attention: What is done between the projections; may be replaced between calls.
        norm: Layer norm, or RMS norm.
        post_norm: Where the norms are.
        torch: The run; None for the active one.

    Attributes:
        qkv, out, up, down: The projections.
        norms: Weights (and shifts, for layer norm) of the two norms; ones and zeros at first.
        norm_grads: Their gradients from the latest backward.
    """

    def __init__(
        self,
        config: TransformerConfig,
        attention: Attention,
        *,
        norm: NormName = "rms",
        post_norm: bool = False,
        torch: RuntimeContext | None = None,
    ) -> None:
        run = torch or current_context()
        self.config = config
        self.attention = attention
        self.centred = norm == "layer"
        self.post_norm = post_norm
        common: Any = {"bias": config.bias, "dtype": config.dtype, "torch": run}
        split: Any = {"sequence_parallel": config.sequence_parallel, "skip_bias_add": True}
        hidden, inner = config.hidden_size, config.intermediate_size
        specs = config.layer_weights
        qkv = specs["attention.qkv"]
        self.qkv = ColumnParallelLinear(hidden, qkv.shape[1], parts=qkv.parts, **common, **split)
        self.out = RowParallelLinear(specs["attention.out"].shape[0], hidden, **common, **split)
        fused = (FusedPart(inner),) * (2 if config.gated else 1)
        self.up = ColumnParallelLinear(hidden, inner * len(fused), parts=fused, **common, **split)
        self.down = RowParallelLinear(inner, hidden, **common, **split)
        ones = [run.ones((hidden,), dtype=config.dtype) for _ in range(2)]
        zeros = [run.zeros((hidden,), dtype=config.dtype) for _ in range(2)]
        self.norms: list[tuple[Tensor, Tensor | None]] = [
            (weight, shift if self.centred else None)
            for weight, shift in zip(ones, zeros, strict=True)
        ]
        keep_for(Phase.WEIGHTS, *ones, *zeros)
        self.norm_grads: list[tuple[Tensor, Tensor | None]] = []
        self._saved: tuple[Tensor, ...] = ()

    @staticmethod
    def heads(config: TransformerConfig) -> Heads:
        """Return the heads of a rank, for its attention."""
        assert config.head_dim is not None
        return Heads(
            num_heads=config.local_num_heads,
            num_key_heads=config.local_num_kv_heads,
            size=config.head_dim,
        )

    def __call__(self, x_TH: Tensor) -> Tensor:
        """Return ``forward(x_TH)``."""
        return self.forward(x_TH)

    def forward(self, x_TH: Tensor) -> Tensor:
        """Return the block's output: all tokens, or the rank's own with sequence parallelism."""
        if self.post_norm:
            middle = self._add_and_norm(self._attend(x_TH), self.out.bias, x_TH, 0)[1]
            return self._add_and_norm(self._mlp(middle), self.down.bias, middle, 1)[1]
        context = self._attend(self._norm(x_TH, 0))
        middle, normed = self._add_and_norm(context, self.out.bias, x_TH, 1)
        hidden = self._mlp(normed)
        self._saved = (x_TH, middle, *self._saved[-1:])
        keep_for(Phase.ACTIVATIONS, *self._saved)
        return ops.bias_residual(hidden, self.down.bias, middle)

    def backward(self, grad_TH: Tensor) -> Tensor:
        """Return the gradient of the input; the projections and ``norm_grads`` keep the others.

        Raises:
            BackwardError: There was no forward before it, or the norms are behind the residuals.
        """
        if self.post_norm:
            raise BackwardError(
                "TransformerLayer.backward supports norms before the residuals only"
            )
        if not self._saved:
            raise BackwardError("TransformerLayer.backward needs a forward before it")
        (x, middle, inner), self._saved = self._saved, ()
        grad_inner = self.down.backward(grad_TH)
        if self.config.gated:
            grad_inner = ops.gated_backward(grad_inner, inner)
        else:
            grad_inner = ops.bias_gelu_backward(grad_inner, inner, self.up.bias)
        grad_middle, mlp_norm = self._norm_backward(
            self.up.backward(grad_inner), middle, grad_TH, 1
        )
        grad_fused = self.attention.backward(self.out.backward(grad_middle))
        grad_x, attention_norm = self._norm_backward(
            self.qkv.backward(grad_fused), x, grad_middle, 0
        )
        self.norm_grads = [attention_norm, mlp_norm]
        keep_for(Phase.GRADIENTS, *attention_norm, *mlp_norm)
        return grad_x

    def parameters(self) -> list[Tensor]:
        """Return this rank's weights and biases, then those of the norms."""
        linear = [p for projection in self._projections() for p in projection.parameters()]
        return linear + [p for pair in self.norms for p in pair if p is not None]

    def gradients(self) -> list[Tensor]:
        """Return the gradients of :meth:`parameters`, in that order."""
        linear = [g for projection in self._projections() for g in projection.gradients()]
        return linear + [g for pair in self.norm_grads for g in pair if g is not None]

    def _projections(self) -> tuple[ColumnParallelLinear | RowParallelLinear, ...]:
        return self.qkv, self.out, self.up, self.down

    def _attend(self, x_TH: Tensor) -> Tensor:
        return self.out(self.attention.forward(self.qkv(x_TH), self.qkv.bias))

    def _mlp(self, x_TH: Tensor) -> Tensor:
        inner, bias = self.up(x_TH), self.up.bias
        if self.config.gated and bias is not None:
            inner = ops.bias_activation(inner, bias)
        self._saved = (inner,)
        if self.config.gated:
            return self.down(ops.gated(inner))
        return self.down(ops.bias_activation(inner, bias, "gelu"))

    def _norm(self, x_TH: Tensor, which: int) -> Tensor:
        weight, shift = self.norms[which]
        return ops.layer_norm(x_TH, weight, shift) if self.centred else ops.rms_norm(x_TH, weight)

    def _add_and_norm(
        self, y: Tensor, bias: Tensor | None, residual: Tensor, which: int
    ) -> tuple[Tensor, Tensor]:
        weight, shift = self.norms[which]
        return ops.residual_norm(y, residual, bias, weight, shift, centred=self.centred)

    def _norm_backward(
        self, grad: Tensor, x: Tensor, residual: Tensor, which: int
    ) -> tuple[Tensor, tuple[Tensor, Tensor | None]]:
        grad_x, weight, shift = ops.norm_backward(
            grad, x, self.norms[which][0], residual_TF=residual, centred=self.centred
        )
        if self.config.sequence_parallel:
            # Each rank has seen its own tokens only.
            reduced = [
                None if tensor is None else copy_to_tensor_model_parallel_region.backward(tensor)
                for tensor in (weight, shift)
            ]
            assert reduced[0] is not None
            weight, shift = reduced[0], reduced[1]
        return grad_x, (weight, shift)
