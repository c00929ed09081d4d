"""What a published run of training did: the model, how it lay over devices, and its software."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.errors import KernbenchError
from kernbench.plans import ModelShape


class NotDescribedError(KernbenchError):
    """A row's run is not described; the text is the reason, in equal words for equal ones."""


MXFP8_ATTENTION = "cudnn_mxfp8"
"""Attention that multiplies in 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """How a framework trains."""

    attention: str = "cudnn"
    """Whose kernels: ``cudnn``, ``cudnn_mxfp8``, ``flash2``, ``flash3``."""
    streams_forward: float = 12.0
    """Bytes per token and hidden number that norms, residuals and the like move forward, in a
    layer."""
    streams_backward: float = 18.0
    streams_inside: float = 1.0
    """How often activations of the MLP are moved, relative to one fused kernel."""
    gated_activation: tuple[float, float] = (1.0, 1.0)
    """How often the bytes of a gated activation are moved, forward and backward, relative to one
    kernel of each."""
    tp_hidden: float = 0.0
    """The share of exchanges between ranks of a layer that products hide."""
    gradients_hidden: bool = True
    """Whether sums over replicas overlap the last backward, and gathers the next forward."""
    gradient_bytes: int = 4
    """Of an element of what replicas sum."""
    shards_optimizer: bool = True
    """Whether each replica updates only its part."""
    contention: float = 0.15
    """How much of an exchange's time products that run meanwhile lose to it: its channels take
    24 of some 140 PEs, and memory's bandwidth."""
    host_us: float = 0.0
    """What the host takes to launch a layer's forward pass; its backward pass takes twice that."""
    kernels_us: float = 2.0
    """Between two of a layer's kernels."""
    dynamic_scales: bool = False
    """Whether operands of 8 bits are scaled by their own largest number: each is read once more,
    and weights are converted for each product."""
    cast_share: float = 1.0
    """The share of memory's rate that conversions to 8 bits reach."""
    fused_rotation: bool = True
    """Whether one kernel rotates queries and keys."""
    fused_experts: bool = False
    """Whether one kernel per product of all experts of a rank applies their activation, too, and
    converts its results; else each expert has its own, that the host launches."""
    expert_launch_us: float = 0.0
    """Of a kernel of one expert: the host has to wait for the number of its rows, so that launches
    do not run ahead."""
    sorts_rows: bool = False
    """Whether one more kernel puts rows that came in the order of ranks in that of experts, and
    back: where a library's all-to-all exchanges them."""
    wide_probabilities: bool = False
    """Whether rows' probabilities have 32 bits: where HybridEP exchanges them."""
    stashes_rows: bool = False
    """Whether what is kept of experts' rows is copied to pages, and back: with rows of which nobody
    knows the number, buffers are as large as it may get."""
    recomputes_activation: bool = False
    """Whether the activation of experts is computed again in the backward pass."""
    slow_bias_gradient: float = 1.0
    """How much longer the gradient of a fused activation of experts with biases takes."""
    exchange_shared: float = 1.0
    """How often a token goes to a node where several of its experts are, relative to once."""
    exchange_hidden: float = 0.0
    """The share of exchanges of experts' rows that other work hides."""
    keeps_gathered: bool = False
    """Whether what ranks of a layer gathered stays until the backward pass."""
    gradients_kept: float = 4.0
    """Bytes of a parameter's gradient where weights are not sharded."""
    step_us: float = 0.0
    """Of a step beside its kernels: reading data, loss, clipping of the norm, logging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """One run."""

    model: ModelShape
    software: Software
    devices: int
    seq: int
    batch: int
    """Sequences of a step, on all devices."""
    microbatch: int = 1
    """Sequences that go through the layers together."""
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    pieces: int = 1
    """Pieces of the model that a stage of the pipeline has."""
    precision: str = "bf16"
    """Of products: ``bf16``, ``fp8``, ``nvfp4``."""
    recompute: str = "none"
    """What of a layer's forward pass is done again: ``full``; ``early`` leaves out the last
    product, which nothing reads; ``selective`` is every second product and the streams."""
    recompute_share: float = 1.0
    """Of layers."""
    shard: int = 1
    """Ranks that weights are sharded over, and gathered from for each layer; 1 for whole ones."""
    keeps_weights: bool = False
    """Whether gathered weights stay until the backward pass (``SHARD_GRAD_OP``)."""
    frozen: bool = False
    """Whether weights have no gradients (adapters, LoRA)."""
    causal: bool = True
    padding: float = 0.0
    """The share of tokens that no kernel sees."""
    nodes: str = ""
    """The machine whose nodes they are; that of the row's device when empty."""
    conditions: tuple[tuple[str, float], ...] = field(default=())

    @property
    def copies(self) -> int:
        """Replicas of the model, each with its part of the batch."""
        return self.devices // (self.tp * self.pp * self.cp)

    @property
    def microbatches(self) -> int:
        """How many go through each replica in a step."""
        return max(round(self.batch / self.copies / self.microbatch), 1)

    @property
    def tokens(self) -> int:
        """Of a microbatch on one rank that splits it over ``cp``."""
        return max(round(self.microbatch * self.seq / self.cp * (1 - self.padding)), 1)
