"""Runs of Megatron and NeMo: MLPerf's rounds, Megatron-Bridge's table, Llama 3's paper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kernbench.accuracy.rows import Row
from validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from validation.predictors.clusters.models import model_of, precision_of
from validation.predictors.clusters.recipes import of_mixture

_SPLIT = re.compile(r"tp(\d+)pp(\d+)cp(\d+)_8b")
_PIECES = re.compile(r"VP=(\d+)")
_MICRO = re.compile(r"mbs(\d+)|MICRO_BATCH_SIZE=(\d+)|MBS=(\d+)")

MEGATRON = Software(
    streams_forward=12, streams_backward=18, gated_activation=(1.57, 2.98), tp_hidden=0.5,
    gradient_bytes=2, step_us=20000,
)  # fmt: skip
"""Gated activations: 1.57 times the time of one kernel forward, 2.46 times in both passes. Source:
linkedin/Liger-Kernel, pull request 1326, against Megatron-Core 0.16.1 on H100. Fitted: ``step_us``,
to 18 rows of MLPerf's Llama-3.1 8B."""
ADAPTERS = replace(MEGATRON, streams_forward=160, streams_backward=240)
"""With those of attention's products: dropout, two narrow products, and sums. Fitted: one number,
to 27 rows of MLPerf's Llama-2 70B that are not kept apart, without those of fused adapters."""
_FUSES_ADAPTERS = "mlperf-training-v5.1"
"""The round from which on they are."""
_BERT = replace(MEGATRON, shards_optimizer=False, gradients_hidden=False, step_us=0)
_UNPADDED = 0.5
"""Of BERT's sequences of 512 tokens in MLPerf, about half is padding. Source: mlcommons/training,
language_model/tensorflow/bert."""


def mlperf(row: Row) -> ClusterJob:
    """Read a row of MLPerf training.

    Raises:
        NotDescribedError: Neither the source nor another submission says how the model was split.
    """
    model = model_of(row.fields["model"])
    devices = row.integer("n_devices")
    config = row.fields["program_config"]
    if model.name == "bert-large":
        return ClusterJob(
            model=model, software=_BERT,
            devices=devices, seq=row.integer("seq_len"), batch=row.integer("global_batch"),
            microbatch=-(-row.integer("global_batch") // devices), precision="fp8",
            causal=False, padding=_UNPADDED,
        )  # fmt: skip
    said = _split(row, config)
    tp, pp, cp = said or _usual_split(row)
    micro = _micro(f"{config} {row.fields['parallelism']}")
    lora = "LoRA" in row.fields["model"]
    if said is None and row.integer("global_batch") > devices // (tp * pp * cp) and not lora:
        micro = row.integer("global_batch") * tp * pp * cp // devices
    return ClusterJob(
        model=model,
        software=ADAPTERS if lora and not _has_fused_adapters(row, tp) else MEGATRON,
        devices=devices,
        seq=row.integer("seq_len"),
        batch=row.integer("global_batch"),
        microbatch=micro,
        tp=tp,
        pp=pp,
        cp=cp,
        pieces=6 if pp > 1 else 1,
        precision="nvfp4" if "fp4" in config and "candidates" not in config else "fp8",
        frozen=lora,
    )


def _has_fused_adapters(row: Row, tp: int) -> bool:
    """Return whether Transformer Engine fuses adapters with the products beside them.

    It does from 2.7 on, which the containers of round 5.1 for Blackwell have, where ranks share
    no layer. Source: NVIDIA-NeMo/Megatron-Bridge, peft/lora_layers.py and peft/lora.py.
    """
    return row.source >= _FUSES_ADAPTERS and tp == 1 and row.device.startswith("Blackwell")


def _micro(text: str) -> int:
    found = _MICRO.search(text)
    return 1 if found is None else int(next(each for each in found.groups() if each))


def _split(row: Row, config: str) -> tuple[int, int, int] | None:
    """Return what the source says of the split; None where it says nothing."""
    if row.fields["tp"]:
        return row.integer("tp"), row.optional("pp") or 1, row.optional("cp") or 1
    found = _SPLIT.search(config)
    if found is not None:
        tp, pp, cp = map(int, found.groups())
        return tp, pp, cp
    return None


_USUAL: Mapping[tuple[str, str], Mapping[float, tuple[int, int, int]]] = {
    ("LoRA", "Blackwell"): {each: (1, 1, each) for each in (1, 2, 4, 8)},
    ("LoRA", "H200"): {1: (1, 1, 2), 8: (4, 1, 2)},
    ("LoRA", "H100"): {0.5: (4, 1, 1), 1: (4, 1, 1), 2: (4, 1, 1), 4: (4, 1, 1), 8: (4, 1, 2)},
    ("8B", "Blackwell"): {0.5: (1, 1, 1), 2: (1, 1, 2), 8: (2, 1, 4)},
}
"""By model, device, and devices for each sequence of a step: the split (TP, PP, CP) of submissions
that say it, which take NVIDIA's of the same round. On 16 and 32 H100s, which none says, ranks of a
node share layers as on fewer and on more."""


def _usual_split(row: Row) -> tuple[int, int, int]:
    """Return the split of other submissions of a round.

    Raises:
        NotDescribedError: They differ, or there is none.
    """
    each = row.integer("n_devices") / row.integer("global_batch")
    for (model, device), splits in _USUAL.items():
        if model in row.fields["model"] and row.device.startswith(device) and each in splits:
            return splits[each]
    raise NotDescribedError("the source does not say how the model was split")


def bridge(row: Row) -> ClusterJob:
    """Read a row of Megatron-Bridge's tables.

    Raises:
        NotDescribedError: The model's sizes are not known.
    """
    model = model_of(row.fields["model"])
    pieces = _PIECES.search(row.fields["parallelism"])
    pp = row.optional("pp") or 1
    if not row.fields["dtype"]:
        raise NotDescribedError("the source gives two precisions in one")
    return ClusterJob(
        model=model,
        software=of_mixture(row, MEGATRON),
        devices=row.integer("n_devices"),
        seq=row.integer("seq_len"),
        batch=row.integer("global_batch"),
        microbatch=row.integer("local_batch"),
        tp=row.optional("tp") or 1,
        pp=pp,
        cp=row.optional("cp") or 1,
        ep=row.optional("ep") or 1,
        pieces=int(pieces.group(1)) if pieces and pp > 1 else 1,
        precision=precision_of(row.fields["dtype"]),
    )


def bridge_dense(row: Row) -> ClusterJob:
    """Read a row of Megatron-Bridge's archive: dense Llamas.

    Raises:
        NotDescribedError: The weights are frozen, or the source does not say whether they are.
    """
    if row.integer("n_ranks") == _ADAPTED_ON:
        raise NotDescribedError("the source does not say which weights are frozen")
    model = model_of(row.fields["model"])
    pp = row.optional("pp") or 1
    return ClusterJob(
        model=model,
        software=MEGATRON,
        devices=row.integer("n_ranks"),
        seq=row.integer("seq"),
        batch=row.integer("batch"),
        tp=row.integer("tp"),
        pp=pp,
        cp=row.optional("cp") or 1,
        pieces=5 if pp > 1 else 1,
        precision=precision_of(row.dtype),
    )


_ADAPTED_ON = 8
"""Devices on which the model does not fit with its optimizer."""


def llama3(row: Row) -> ClusterJob:
    """Read a row of Llama 3's table 4: 16 million tokens in a step, products of 16 bits.

    Source: arXiv 2407.21783, section 3.3: RoCE of 400 Gb/s per device.
    """
    model = model_of(row.fields["model"])
    return ClusterJob(
        model=model,
        software=replace(MEGATRON, tp_hidden=0.0, gradient_bytes=4, attention="flash2"),
        devices=row.integer("n_ranks"),
        seq=row.integer("seq"),
        batch=2**24 // row.integer("seq"),
        tp=row.integer("tp"),
        pp=row.integer("pp"),
        pieces=8,
    )
