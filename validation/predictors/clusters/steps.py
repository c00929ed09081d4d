"""The time of a step: layers and exchanges in the order of the job's schedule."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.plans import Layout, one_forward_one_backward_us, weights_per_rank
from validation.predictors.clusters.jobs import ClusterJob
from validation.predictors.clusters.kernels import Direction, Kernels
from validation.predictors.clusters.layers import Layers
from validation.predictors.clusters.wires import ClusterWires, TorusWires

_ITEM = 2


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step, in microseconds."""

    through_us: float
    """All microbatches through all stages, forward and backward."""
    gradients_us: float
    """What is not hidden of sums over replicas, and of gathers."""
    update_us: float
    rest_us: float

    @property
    def total_us(self) -> float:
        return self.through_us + self.gradients_us + self.update_us + self.rest_us


def step_of(job: ClusterJob, kernels: Kernels, wires: ClusterWires | TorusWires) -> StepParts:
    """Return the parts of a job's step."""
    layers = Layers(job, kernels)
    # An uneven stage waits for the fullest one.
    of_stage = -(-job.model.layers // (job.pp * job.pieces)) * job.pieces
    layer = _with_exchanges(job, layers.layer(), wires)
    ends = layers.ends()
    layer = _gathered(job, layer, wires)
    send_us = 0.0
    if job.pp > 1:
        tokens = job.tokens // job.tp
        send_us = wires.send(job.tp * job.cp, _ITEM * tokens * job.model.hidden)
    through = one_forward_one_backward_us(
        job.pp,
        job.microbatches,
        layer.forward * of_stage,
        layer.backward * of_stage,
        send_us,
        chunks=job.pieces,
        ends_us=(ends.forward, ends.backward),
    )
    return StepParts(
        through_us=through,
        gradients_us=_sums(job, layer, of_stage, wires),
        update_us=layers.update(_updated(job)),
        rest_us=job.software.step_us,
    )


def _weights(job: ClusterJob) -> tuple[float, float]:
    """Return weights of a rank before replicas share them: of all, and of its experts."""
    layout = Layout(tp=job.tp, pp=job.pp, cp=job.cp, dp=job.copies, ep=job.ep)
    dense, experts = weights_per_rank(job.model, layout)
    return dense, experts * (job.tp if job.ep > 1 else 1)


def _replicas(job: ClusterJob) -> tuple[int, int]:
    """Return how many ranks have the same weights: those of all, and those of experts."""
    copies = job.copies * job.cp
    return max(copies, 1), max(copies * job.tp // job.ep, 1)


def _updated(job: ClusterJob) -> float:
    """Return the parameters that a rank's optimizer steps."""
    if job.frozen:
        return 0.0
    own = _weights(job)
    if job.shard == 1 and not job.software.shards_optimizer:
        return sum(own)
    return sum(each / ranks for each, ranks in zip(own, _replicas(job), strict=True))


def _with_exchanges(
    job: ClusterJob, layer: Direction, wires: ClusterWires | TorusWires
) -> Direction:
    """Return a layer with the exchanges that its ranks cannot go on without."""
    model = job.model
    size = _ITEM * job.tokens * model.hidden
    shown = 1 - job.software.tp_hidden
    if job.tp > 1:
        gather = wires.time("all_gather", job.tp, 1, size)
        scatter = wires.time("reduce_scatter", job.tp, 1, size)
        # Two parallel regions; backward gathers the regions' inputs once more, for gradients of
        # weights, behind products.
        both = 2 * shown * (gather + scatter)
        # What is done again is gathered again; a policy keeps what was summed.
        again = {"none": 0.0, "selective": 2 * shown * gather}.get(job.recompute, both)
        layer += Direction(both, both + job.recompute_share * again)
    if job.ep > 1:
        rows = _ITEM * job.tokens / job.tp * model.hidden
        shared = job.software.exchange_shared
        one = wires.experts(job.ep, model.top_k, rows, shared)
        one *= 2 * (1 - job.software.exchange_hidden)
        layer += Direction(one, one)
    if job.cp > 1:
        # Keys and values are gathered; of their gradients, sums are scattered.
        kept = model.kv_numbers // job.tp
        whole = _ITEM * job.tokens * job.cp * kept
        gather = wires.time("all_gather", job.cp, job.tp, whole)
        scatter = wires.time("reduce_scatter", job.cp, job.tp, whole)
        layer += Direction(shown * gather, shown * (gather + scatter))
    return layer


def _gathered(job: ClusterJob, layer: Direction, wires: ClusterWires | TorusWires) -> Direction:
    """Return a layer whose weights are gathered ahead of it, and whose gradients scattered."""
    if job.shard == 1:
        return layer
    weights = _layer_weights(job)
    stride = job.tp
    gather = wires.time("all_gather", job.shard, stride, int(_ITEM * weights))
    scatter = wires.time(
        "reduce_scatter", job.shard, stride, int(job.software.gradient_bytes * weights)
    )
    again = 0.0 if job.keeps_weights else gather
    slow = job.software.contention
    forward = max(layer.forward + slow * gather, gather)
    behind = again + scatter
    return Direction(forward, max(layer.backward + slow * behind, behind))


def _layer_weights(job: ClusterJob) -> float:
    model = job.model
    experts = model.expert_weights / max(job.ep, 1)
    return (model.attention_weights + model.mlp_weights) / job.tp + experts


def _sums(
    job: ClusterJob, layer: Direction, of_stage: int, wires: ClusterWires | TorusWires
) -> float:
    """Return what shows of exchanges between replicas."""
    software, model = job.software, job.model
    dense, experts = _weights(job)
    if job.frozen:
        return 0.0
    if job.shard > 1:
        # The first gather and the last scatter have nothing beside them; replicas of shards sum
        # behind the rest.
        table = model.table / job.tp
        stride = job.tp
        shown = wires.time("all_gather", job.shard, stride, int(_ITEM * table))
        size = int(software.gradient_bytes * table)
        shown += wires.time("reduce_scatter", job.shard, stride, size)
        replicas = job.copies // job.shard
        if replicas > 1:
            own = _layer_weights(job) / job.shard * software.gradient_bytes
            each = wires.time("all_reduce", replicas, job.shard * stride, int(own))
            shown += max(of_stage * (each - layer.backward), each)
        return shown
    found = 0.0
    of_all, of_experts = _replicas(job)
    for elements, ranks, stride in ((dense, of_all, job.tp), (experts, of_experts, job.ep)):
        if ranks <= 1 or not elements:
            continue
        summed = int(software.gradient_bytes * elements)
        if not software.shards_optimizer:
            scatter, gather = wires.time("all_reduce", ranks, stride, summed), 0.0
        else:
            scatter = wires.time("reduce_scatter", ranks, stride, summed)
            gather = wires.time("all_gather", ranks, stride, int(_ITEM * elements))
        if software.gradients_hidden:
            # Of the last microbatch's backward pass, and of the first one's forward pass.
            pieces = of_stage
            slow = software.contention
            scatter = max(scatter - layer.backward * pieces, scatter / pieces, slow * scatter)
            gather = max(gather - layer.forward * pieces, gather / pieces, slow * gather)
        found += scatter + gather
    return found
