"""The bytes of a rank at their peak, by kind, as a job's software keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.plans import Layout, weights_per_rank
from validation.predictors.clusters.jobs import ClusterJob

_ITEM = 2
_LOGIT_BYTES = 12
"""Of a logit where the loss is computed in 32 bits: itself in 16 and 32, and both gradients."""
_AHEAD = 2
"""Layers whose whole weights, and gradients, are there at a time."""


def memory_of(job: ClusterJob) -> Mapping[str, float]:
    """Return the bytes of the fullest rank by kind, without the context and the allocator's gaps.

    Weights that are sharded over ranks are in 32 bits, with gradients and two moments of Adam.
    Others are in 16 bits, with gradients and, for the optimizer, weights and moments in 32.
    """
    layout = Layout(tp=job.tp, pp=job.pp, cp=job.cp, dp=job.copies, ep=job.ep)
    dense, experts = weights_per_rank(job.model, layout)
    own = dense + experts
    found: dict[str, float] = {}
    if job.shard > 1:
        shard = own / job.shard
        found |= {"weights": 4 * shard, "gradients": 4 * shard, "optimizer": 8 * shard}
        layer = (job.model.attention_weights + job.model.mlp_weights) / job.tp
        table = job.model.table / job.tp
        found["gathered"] = _AHEAD * (_ITEM + 4) * layer + (_ITEM + 4) * table
    else:
        copies = job.copies * job.cp if job.software.shards_optimizer else 1
        found |= {"weights": _ITEM * own, "gradients": job.software.gradients_kept * own}
        found["optimizer"] = 12 * own / copies
    found["activations"] = _activations(job)
    found["logits"] = _LOGIT_BYTES * job.tokens * job.model.vocabulary / job.tp
    if job.pp > 1:
        # The first stage, which has most microbatches under way, has no logits.
        found["logits"] = 0.0
    return found


def _activations(job: ClusterJob) -> float:
    model, tokens = job.model, job.tokens
    kept = _ITEM * tokens * model.hidden / job.tp
    queries = (model.heads + 2 * model.kv_heads) * model.head_dim
    heads = queries
    results = model.heads * model.head_dim
    eager = job.software.streams_inside > 1
    # Of eager operations, each keeps what it reads: queries before rotation, the gate's function.
    wide = ((3 if model.gated else 2) + eager) * model.intermediate
    queries *= 1 + eager
    # Inputs of norms and of products; queries, keys, values and results; inside of the MLP.
    inside = _ITEM * tokens / job.tp * (queries + results + wide)
    gathered = 2 * _ITEM * tokens * model.hidden if job.tp > 1 else 0.0
    products = _ITEM * tokens / job.tp * (heads + model.hidden * 2 + 3 * model.intermediate)
    layer = {
        "none": 4 * kept + inside + (gathered if job.software.keeps_gathered else 0.0),
        "full": kept,
        "early": kept,
        # Every second product, results of attention, and the layer's input.
        "selective": kept + products / 2 + _ITEM * tokens / job.tp * results,
    }[job.recompute]
    layers = model.layers / job.pp
    under_way = min(job.pp, job.microbatches)
    working = 4 * kept + inside + gathered if job.recompute in ("full", "early") else 0.0
    return under_way * layers * layer + working
