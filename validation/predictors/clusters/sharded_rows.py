"""Runs of PyTorch's sharded trainers on several nodes: fms-fsdp, torchtitan, nanotron."""

from __future__ import annotations

import re
from dataclasses import replace

from kernbench.accuracy.rows import Row
from kernbench.plans import ModelShape
from validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from validation.predictors.clusters.models import llama, model_of, precision_of

_COMPILED = Software(
    attention="flash2", streams_forward=14, streams_backward=22, streams_inside=1.0,
    gradient_bytes=4, dynamic_scales=True, cast_share=0.5,
)  # fmt: skip
_EAGER = replace(_COMPILED, streams_forward=100, streams_backward=200, streams_inside=1.6)
_NANOTRON = replace(
    _COMPILED,
    streams_forward=30,
    streams_backward=50,
    streams_inside=1.3,
    gradients_hidden=False,
    keeps_gathered=True,
    gradients_kept=6.0,
    gradient_bytes=4,
    shards_optimizer=False,
)
_ZERO = re.compile(r"ZeRO-(\d)")


def fms(row: Row) -> ClusterJob:
    """Read a row of fms-fsdp: compiled, its weights sharded over all devices or over a node."""
    shard = row.integer("fsdp")
    return ClusterJob(
        model=_llama(row),
        software=_COMPILED,
        devices=row.integer("n_devices"),
        seq=row.integer("seq_len"),
        batch=row.integer("global_batch"),
        microbatch=row.integer("local_batch"),
        shard=shard,
        recompute="none" if row.fields["activation_checkpointing"] == "none" else "early",
        recompute_share=_FMS_SHARES.get((row.device, row.fields["model"]), 1.0),
        conditions=_FMS_NETWORK[row.device],
    )


_BANDWIDTH = "links.scale_out.bandwidth_gbps"
_FMS_NETWORK = {"A100-80GB": ((_BANDWIDTH, 6.25),), "H100-80GB": ((_BANDWIDTH, 12.5),)}
"""400 and 800 Gb/s per node, as the table says."""
_FMS_SHARES = {
    ("A100-80GB", "Llama-2 13b"): 0.39,
    ("H100-80GB", "Llama-2 13b"): 0.21,
    ("H100-80GB", "Llama-2 34b"): 0.87,
    ("H100-80GB", "Llama-2 70b"): 0.71,
}
"""Of layers that are recomputed: from the table of MFU and HFU beside that of tokens."""


def torchtitan(row: Row) -> ClusterJob:
    """Read a row of torchtitan's tables.

    A pipeline has as many microbatches as stages. Its ranks keep gathered weights, and sum
    gradients behind the last microbatch, so that sharding them is sharding the optimizer.
    Source: pytorch/torchtitan @9dec370, torchtitan/parallelisms.

    Raises:
        NotDescribedError: The source does not say what was computed again.
    """
    compiled = row.fields["compile"].startswith("yes")
    software = _COMPILED if compiled else _EAGER
    tp, pp, cp = (row.optional(each) or 1 for each in ("tp", "pp", "cp"))
    parallelism, devices = row.fields["parallelism"], row.integer("n_devices")
    if "AsyncTP" in parallelism:
        software = replace(software, tp_hidden=_ASYNC)
    local = row.integer("local_batch")
    return ClusterJob(
        model=model_of(row.fields["model"]),
        software=software,
        devices=devices,
        seq=row.integer("seq_len"),
        batch=local * devices // (tp * pp * cp),
        microbatch=max(local // pp, 1),
        tp=tp,
        pp=pp,
        cp=cp,
        pieces=2 if pp > 1 and "nterleaved" in parallelism else 1,
        shard=devices // tp if pp == 1 else 1,
        precision=precision_of(row.dtype),
        recompute=_recomputed(row),
    )


_ASYNC = 0.5
"""The share of gathers and scatters that asynchronous TP hides."""


def torchao(row: Row) -> ClusterJob:
    """Read a row of torchao's runs of torchtitan on one node.

    Raises:
        NotDescribedError: The boards have a limit that the source does not say.
    """
    if "limited" in row.device:
        raise NotDescribedError("the source does not say how far its boards are limited")
    job = torchtitan(row)
    if not row.device.startswith("H100"):
        return job
    # The source says no more of them: assumed to be those on which its authors time torchtitan.
    return replace(job, nodes="h100-sxm-500w")


def upgrade(row: Row) -> ClusterJob:
    """Read a row of ml-engineering's comparison of H200 and B200: DeepSpeed on one node.

    Source: stas00/ml-engineering, insights/when-to-upgrade-gpus.

    Raises:
        NotDescribedError: The optimizer runs on the host.
    """
    if "offload" in row.fields["parallelism"]:
        raise NotDescribedError("an optimizer on the host is not described")
    newest = "flash4" if row.device.startswith("B200") else "flash3"
    return ClusterJob(
        model=model_of(row.fields["model"]),
        software=replace(_EAGER, attention=newest, gradient_bytes=2),
        devices=row.integer("n_devices"),
        seq=row.integer("seq_len"),
        batch=row.integer("global_batch"),
        microbatch=row.integer("local_batch"),
        recompute=_recomputed(row),
    )


def async_tp(row: Row) -> ClusterJob:
    """Read a row of torchtitan's report on asynchronous TP.

    Source: pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md: local batches
    of 4 (8B) and 16 (70B), of which full and selective recomputation.
    """
    large = "70B" in row.fields["model"]
    tp, devices = row.integer("tp"), row.integer("n_ranks")
    micro = 16 if large else 4
    hidden = _ASYNC if "async" in row.fields["impl"] else 0.0
    return ClusterJob(
        model=model_of(row.fields["model"]),
        software=replace(_COMPILED, tp_hidden=hidden),
        devices=devices,
        seq=row.integer("seq"),
        batch=micro * devices // tp,
        microbatch=micro,
        tp=tp,
        shard=devices // tp,
        recompute="early" if large else "selective",
    )


def nanotron(row: Row) -> ClusterJob:
    """Read a row of nanotron's scaling benchmarks: eager, sums over replicas behind the rest."""
    zero = _ZERO.search(row.fields["parallelism"] + row.fields["program_config"])
    return ClusterJob(
        model=_llama(row),
        software=replace(_NANOTRON, shards_optimizer=zero is not None and zero.group(1) == "1"),
        devices=row.integer("n_devices"),
        seq=row.integer("seq_len"),
        batch=row.integer("global_batch"),
        microbatch=row.integer("local_batch"),
        tp=row.integer("tp"),
        pp=row.integer("pp"),
    )


_MPT = replace(
    _EAGER, attention="efficient", streams_forward=60, streams_backward=110, gradient_bytes=2
)
"""Norms of low precision, biases, and one kernel for the loss. Fitted: streams, by one number, to
72 rows."""


def mpt(row: Row) -> ClusterJob:
    """Read a row of LLM Foundry's tables.

    Raises:
        NotDescribedError: Products are of 8 bits.
    """
    if "fp8" in row.dtype:
        raise NotDescribedError("MPT in fp8 (Transformer Engine) is not described")
    size, devices = row.integer, row.integer("n_devices")
    model = llama(
        row.fields["model"], size("hidden"), size("layers"), size("heads"), size("ffn"),
        size("vocab"), size("heads"),
    )  # fmt: skip
    return ClusterJob(
        model=replace(model, gated=False, bias=True, tied=True),
        software=_MPT,
        devices=devices,
        seq=size("seq_len"),
        batch=size("global_batch"),
        microbatch=size("local_batch"),
        shard=devices,
        keeps_weights=row.fields["parallelism"] == "SHARD_GRAD_OP",
        recompute=_recomputed(row),
    )


def _llama(row: Row) -> ModelShape:
    size = row.integer
    return llama(
        row.fields["model"], size("hidden"), size("layers"), size("heads"), size("ffn"),
        size("vocab"), size("kv_heads"),
    )  # fmt: skip


def _recomputed(row: Row) -> str:
    said = row.fields["activation_checkpointing"]
    if said.startswith("full"):
        return "early"
    if said.startswith("selective"):
        return "selective"
    if said in ("", "none"):
        return "none"
    raise NotDescribedError(f"recomputation as {said} is not described")
