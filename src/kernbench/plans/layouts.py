"""Layouts of a model over devices: which there are, and the memory of each per rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.plans.models import ModelShape
from kernbench.tp import TransformerConfig

GIB = 1 << 30
PROGRAM = Path(__file__).parent / "programs" / "train.py"
"""The program that trains in any layout; its configuration says which."""
_RESERVED = 2 * GIB
"""The device's bytes for its context, libraries, buffers of collectives and fragments: assumed."""
_LEAST_OWN_TOKENS = 4096
"""Sequences are split over ranks by itself (CP) where each keeps at least so many tokens."""
_MOST_TOKENS = 32768
"""The most tokens of a micro-batch, unless a sequence alone has more."""
_MICROBATCHES = (1, 2, 4, 8)
_VECTOR = 16
"""Columns of the MLP that stands for none."""


SHARDS = {"zero3": "ZeRO-3", "zero2": "ZeRO-2", "hsdp": "HSDP", "zero1": "ZeRO-1", "ddp": "DDP"}
"""Ways in which replicas share a model's state, by how little of it each keeps. ZeRO-3 and ZeRO-2
are FSDP2, which gathers weights again for the backward pass or keeps them; HSDP is ZeRO-3 within
nodes."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What devices are to do."""

    trains: bool
    devices: int
    batch: int
    """Sequences of a step, on all devices; of a server, those that are under way."""
    seq: int
    """Tokens of a sequence; of a server, of its prompt."""
    new_tokens: int = 0
    """Tokens that a server makes for each sequence."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model lies over devices."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int = 1
    sequence_parallel: bool = False
    recompute: bool = False
    microbatch: int = 1
    """Sequences that go through a stage together."""
    microbatches: int = 1
    shard: str = ""
    """What replicas share in training, by :data:`SHARDS`."""
    shards: int = 0
    """Ranks that share it; 0 for all copies."""

    @property
    def gathers_again(self) -> bool:
        """Whether each pass over a layer gathers its weights anew."""
        return self.shard in ("zero3", "hsdp")

    @property
    def copies(self) -> int:
        """Ranks that have the same weights, whole or in parts."""
        return self.dp * self.cp

    @property
    def label(self) -> str:
        """The layout in a few words."""
        parts = [f"TP {self.tp}", f"PP {self.pp}"]
        parts += [f"CP {self.cp}"] if self.cp > 1 else []
        parts += [f"DP {self.dp}"]
        parts += [f"EP {self.ep}"] if self.ep > 1 else []
        parts += [SHARDS[self.shard]] if self.shard and self.copies > 1 else []
        parts += ["SP"] if self.sequence_parallel else []
        parts += ["recompute"] if self.recompute else []
        return f"{' '.join(parts)}, {self.microbatches} x {self.microbatch}"


@dataclass(frozen=True)
class AllowedSizes:
    """Sizes that the user allows; None for all."""

    sizes: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    shards: tuple[str, ...] | None = None

    def allow(self, name: str, size: int) -> bool:
        """Return whether a size may be taken."""
        allowed = self.sizes.get(name)
        return allowed is None or size in allowed


def config_of(model: ModelShape, tp: int, sequence_parallel: bool) -> TransformerConfig:
    """Return a model's layers as ``kernbench.tp`` has them; routed experts are not in it.

    Raises:
        UsageError: Heads or widths do not split over the ranks.
    """
    return TransformerConfig(
        hidden_size=model.hidden,
        intermediate_size=model.intermediate or tp * _VECTOR,
        num_heads=model.heads,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        # Tables are padded, as Megatron does.
        vocab_size=-(-model.vocabulary // (128 * tp)) * 128 * tp,
        num_layers=model.layers,
        tp_size=tp,
        gated=model.gated,
        bias=model.bias,
        tied_embeddings=model.tied,
        sequence_parallel=sequence_parallel,
    )


def layouts(
    model: ModelShape, job: Job, node: int, limits: AllowedSizes, refused: list[str]
) -> Iterator[Layout]:
    """Yield the layouts that divide the model and the batch.

    ``node`` devices share a switch: TP stays inside. What does not divide is said in ``refused``.
    """
    refused += _asked_in_vain(model, job, node, limits)
    sizes = [index for index in range(1, job.devices + 1) if job.devices % index == 0]
    for tp in (size for size in sizes if size <= node and limits.allow("tp", size)):
        try:
            config_of(model, tp, False)
        except UsageError as error:
            refused.append(f"TP {tp}: {error}")
            continue
        for pp, cp in product(sizes, sizes):
            if job.devices % (tp * pp * cp) or not _may_split(model, job, pp, cp, limits):
                continue
            dp = job.devices // (tp * pp * cp)
            if limits.allow("dp", dp):
                yield from _microbatched(model, job, (tp, pp, cp, dp), node, limits, refused)


def _asked_in_vain(model: ModelShape, job: Job, node: int, limits: AllowedSizes) -> Iterator[str]:
    """Say of sizes that were asked for why they are none."""
    for kind, asked in limits.sizes.items():
        for size in asked or ():
            what = f"{kind.upper()} {size}"
            if job.devices % size:
                yield f"{what}: {job.devices} devices do not split into groups of {size}"
            elif kind == "tp" and size > node:
                yield f"{what}: a node has {node} devices"
            elif kind == "pp" and model.layers % size:
                yield f"{what}: {model.layers} layers do not split into {size} stages"
            elif kind == "cp" and job.seq % size:
                yield f"{what}: sequences of {job.seq} tokens do not split over {size}"


def _may_split(model: ModelShape, job: Job, pp: int, cp: int, limits: AllowedSizes) -> bool:
    if model.layers % pp or not (limits.allow("pp", pp) and limits.allow("cp", cp)):
        return False
    if cp == 1:
        return True
    asked = limits.sizes.get("cp") is not None
    return job.trains and job.seq % cp == 0 and (asked or job.seq // cp >= _LEAST_OWN_TOKENS)


def _microbatched(
    model: ModelShape,
    job: Job,
    sizes: tuple[int, int, int, int],
    node: int,
    limits: AllowedSizes,
    refused: list[str],
) -> Iterator[Layout]:
    tp, pp, cp, dp = sizes
    if job.batch % dp:
        refused.append(f"DP {dp}: a batch of {job.batch} sequences does not split over {dp}")
        return
    own = job.batch // dp
    both = math.gcd(dp, model.experts)
    experts = [size for size in range(1, both + 1) if both % size == 0] if model.experts else [1]
    for ep in (expert for expert in experts if limits.allow("ep", expert)):
        common: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep}
        if not job.trains:
            parts = pp if own % pp == 0 else 1
            yield Layout(**common, microbatch=own // parts, microbatches=parts)
            continue
        for size in _MICROBATCHES:
            if own % size or (size > 1 and size * job.seq // cp > _MOST_TOKENS):
                continue
            for parallel, again in product((False, True)[: 1 + (tp > 1)], (False, True)):
                if parallel and size * job.seq // cp % tp:
                    continue
                for shard in _shards(common, node, limits):
                    yield Layout(
                        **common,
                        sequence_parallel=parallel,
                        recompute=again,
                        microbatch=size,
                        microbatches=own // size,
                        shard=shard,
                        shards=node // tp if shard == "hsdp" else 0,
                    )


def _shards(sizes: Mapping[str, int], node: int, limits: AllowedSizes) -> Iterator[str]:
    """Yield how replicas of such a layout may share a model's state."""
    if sizes["dp"] * sizes["cp"] == 1:
        # One rank has all of it.
        yield "zero2"
        return
    is_plain = sizes["tp"] == sizes["cp"] == sizes["ep"] == 1
    inside = node // sizes["tp"]
    may_be = {
        # Pipelines keep what they gathered: each micro-batch would gather it again.
        "zero3": sizes["pp"] == 1,
        "zero2": True,
        "hsdp": sizes["pp"] == sizes["cp"] == sizes["ep"] == 1
        and 1 < inside < sizes["dp"]
        and sizes["dp"] % inside == 0,
        # Copies of weights that are split already, or that are experts', are not kept.
        "zero1": is_plain,
        "ddp": is_plain and limits.shards is not None,
    }
    yield from (
        shard
        for shard, may in may_be.items()
        if may and (limits.shards is None or shard in limits.shards)
    )


def weights_per_rank(model: ModelShape, layout: Layout) -> tuple[float, float]:
    """Return the weights of the fullest rank: those that all replicas have, and expert weights."""
    layer = (model.attention_weights + model.mlp_weights) / layout.tp
    tables = 1 if layout.pp > 1 or model.tied else 2
    dense = layer * model.layers / layout.pp + tables * model.table / layout.tp
    experts = model.expert_weights * model.layers / layout.pp / layout.tp / layout.ep
    return dense, experts


def memory(model: ModelShape, job: Job, layout: Layout) -> dict[str, float]:
    """Return the bytes of the fullest rank by kind.

    Training: float32 weights, gradients and two moments of Adam, each whole or a replica's part of
    it, and bfloat16 weights for products: all of them, or two layers of ZeRO-3. Activations are
    those that backward reads, of all micro-batches under way in the first stage of 1F1B; attention
    keeps no scores.
    """
    dense, experts = weights_per_rank(model, layout)
    whole = dense + experts
    values = {"weights": 2 * whole}
    if job.trains:
        part = dense / (layout.shards or layout.copies) + experts * layout.ep / layout.copies
        gathered = min(2 / model.layers, 1.0) if layout.gathers_again else 1.0
        keeps_all, adds_up = layout.shard in ("ddp", "zero1"), layout.microbatches > 1
        values["weights"] = 4 * (whole if keeps_all else part) + 2 * whole * gathered
        is_whole = keeps_all or (layout.shard == "zero2" and adds_up)
        values["gradients"] = 4 * (whole if is_whole else part)
        values["optimizer"] = 8 * (whole if layout.shard == "ddp" else part)
        values["activations"] = _activations(model, job, layout)
        tokens = layout.microbatch * job.seq / layout.cp
        # Logits in bfloat16, and in float32 for the loss.
        values["logits"] = 6 * tokens * model.vocabulary / layout.tp
    else:
        own, length = job.batch / layout.dp, job.seq + job.new_tokens
        heads = max(layout.tp, 1) if model.latent_kv == 0 else 1
        shared = min(heads, model.kv_heads)
        values["KV cache"] = 2 * own * length * model.kv_numbers * model.layers / layout.pp / shared
        widest = max(3 * model.intermediate, 3 * model.expert_intermediate * max(model.top_k, 1))
        tokens = layout.microbatch * job.seq
        values["activations"] = 2 * tokens * (4 * model.hidden + widest / layout.tp)
    values["reserved"] = _RESERVED
    return values


def _activations(model: ModelShape, job: Job, layout: Layout) -> float:
    tokens = layout.microbatch * job.seq / layout.cp
    own = layout.tp if layout.sequence_parallel else 1
    kept = 2 * tokens * model.hidden / own
    wide = model.intermediate + model.top_k * model.expert_intermediate
    heads = 2 * model.heads + 2 * model.kv_heads
    # Inputs of both norms and of both projections; queries, keys, values, results; the MLP's.
    inside = 2 * tokens * (heads * model.head_dim + (3 if model.gated else 2) * wide) / layout.tp
    layer = 4 * kept + inside
    under_way = min(layout.pp, layout.microbatches)
    layers = model.layers / layout.pp
    if layout.recompute:
        return under_way * layers * kept + layer
    return under_way * layers * layer
