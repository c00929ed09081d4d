"""Runs of PyTorch's sharded trainers on several nodes: fms-fsdp, torchtitan, nanotron."""

from __future__ import annotations

import re
from dataclasses import replace

from kernbench.accuracy.validation.plans.models import ModelShape
from kernbench.accuracy.validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from kernbench.accuracy.validation.predictors.clusters.models import llama, model_of
from kernbench.accuracy.validation.rows.reference import Row

_COMPILED = Software(
    attention="flash2", streams_forward=14, streams_backward=22, streams_inside=1.0,
    gradient_bytes=4, dynamic_scales=True,
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

    Raises:
        NotDescribedError: The row is of experts, or of a pipeline.
    """
    compiled = row.fields["compile"].startswith("yes")
    software = _COMPILED if compiled else _EAGER
    tp, cp = row.optional("tp") or 1, row.optional("cp") or 1
    if "AsyncTP" in row.fields["parallelism"]:
        software = replace(software, tp_hidden=_ASYNC)
    return ClusterJob(
        model=model_of(row.fields["model"]),
        software=software,
        devices=row.integer("n_devices"),
        seq=row.integer("seq_len"),
        batch=row.integer("local_batch") * row.integer("n_devices") // (tp * cp),
        microbatch=row.integer("local_batch"),
        tp=tp,
        pp=row.optional("pp") or 1,
        cp=cp,
        shard=row.integer("n_devices") // tp,
        precision="fp8" if "float8" in row.dtype else "bf16",
        recompute=_recomputed(row),
        nodes=_500_W_OF if "500W" in row.device else "",
        conditions=_500_W if "500W" in row.device else (),
    )


_500_W_OF = "h100-sxm"
_500_W = (("sip.power.cap_w", 500.0), ("sip.cube.hbm_bandwidth_gbps", 2400.0))
"""H100 with HBM2e and a lower limit: in training it runs at the clock that the limit leaves."""
_ASYNC = 0.5
"""The share of gathers and scatters that asynchronous TP hides."""


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
        nodes=_500_W_OF,
        conditions=_500_W,
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
