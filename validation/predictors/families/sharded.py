"""Training on the devices of one or more nodes: LLM Foundry's MPT, torchtitan, fms-fsdp.

All ranks of these programs do the same but for what collectives move, so that one runs for all.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from kernbench.plans import PROGRAM
from validation.predictors.families.chosen import ChosenProgram, is_compiled, num_nodes
from validation.programs import Program, ProgramError, folder_of, loop

_MPT = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "local_batch", "grad_accum")
_MPT_ATTENTION = "triton"
"""What all of its tables ran in 16 bits: the default of ``--attn_impl`` where they were submitted,
at the rows' commit (scripts/train/benchmarking/submit_benchmarks.py, 5e85bd6), which sweep.sh
leaves alone. Their column says flash for H100, the default since March 2024."""


def mpt(row: Row, programs: Path) -> ChosenProgram:
    """A step of an MPT, by a program with equal operations.

    Raises:
        ProgramError: Its products are of 8 bits.
    """
    if "fp8" in row.dtype:
        raise ProgramError("MPT in fp8 (Transformer Engine) is not described")
    sizes = [row.integer(name) for name in _MPT]
    recomputed = row.fields["activation_checkpointing"] or "none"
    more = (recomputed, row.fields["parallelism"], _MPT_ATTENTION)
    program = loop("mpt", *sizes, *more, ranks=row.integer("n_devices"))
    program = replace(program, nodes=num_nodes(row), folded_to=0)
    # The source gives tokens a second of all devices; the file, the step.
    return ChosenProgram(program=program, runs_hot=True)


_WORDS = {"nvfp4": ("fp4",), "fp8": ("fp8", "float8"), "bf16": ("bf16", "bfloat16")}
_UNSURE = ("n/a", "see config", "not stated", "candidates", "fp16/", "/fp16")


def precision_of(said: str) -> str:
    """Return the precision of a run's products: the narrowest that its source names.

    >>> precision_of("bf16+mxfp8 linears"), precision_of("NVFP4"), precision_of("BF16")
    ('fp8', 'nvfp4', 'bf16')

    Raises:
        ProgramError: The source leaves it open, or names none.
    """
    words = said.lower()
    for precision, names in _WORDS.items():
        if any(name in words for name in names) and not any(name in words for name in _UNSURE):
            return precision
    raise ProgramError("the source does not state one precision")


TORCHTITAN = "73a0e69"
"""v0.2.2, the release that runs with this PyTorch; rows are of a commit of December 2024."""
_LOSS_COMPILED = 8
"""The minor release of PyTorch 2 from which on torchtitan's commits compile the loss, too (e8977b0
of December 2024 had turned it off, bbb1b61 of April 2025 turned it on): rows with an older one have
the logits in 32 bits, several times."""
_PYTORCH = re.compile(r"\b2\.(\d+)")
_CONFIGS = {
    "Llama-3 8B": "llama3/train_configs/llama3_8b.toml",
    "Llama-3.1 8B": "llama3/train_configs/llama3_8b.toml",
    "Llama-3.1 70B": "llama3/train_configs/llama3_70b.toml",
    "Llama-3.1 405B": "llama3/train_configs/llama3_405b.toml",
}
_RECOMPUTED = {"full": "full", "none": "none"}

_FLOAT8 = "quantize.linear.float8"
_MX = "quantize.linear.mx"
_RECIPE = re.compile(r"rowwise_with_gw_hp|rowwise|mxfp8_cublas_rceil|mxfp8_cublas")
_TENSORWISE = ("enable-fsdp-float8-all-gather", "precompute-float8-dynamic-scale-for-fsdp")
"""What torchtitan's page on float8 has beside scales of whole tensors, and rows' configurations."""


def _eight_bits(dtype: str) -> list[str]:
    """Return the trainer's options for products in 8 bits, by torchao's recipe; none for bf16.

    Raises:
        ProgramError: The products are in 4 bits, or the source leaves them open.
    """
    if (precision := precision_of(dtype)) == "bf16":
        return []
    if precision != "fp8":
        raise ProgramError(f"torchtitan with {precision} is not described")
    recipe = _RECIPE.search(dtype)
    if recipe is None:
        return ["--model.converters", _FLOAT8, *(f"--{_FLOAT8}.{name}" for name in _TENSORWISE)]
    converter = _MX if recipe[0].startswith("mx") else _FLOAT8
    return ["--model.converters", converter, f"--{converter}.recipe-name", recipe[0]]


def _library(dtype: str) -> tuple[str, ...]:
    return () if precision_of(dtype) == "bf16" else ("torchao",)


def torchtitan(row: Row, programs: Path) -> ChosenProgram:
    """A step of torchtitan's trainer, by its config of the model, compiled by block if the row was.

    Raises:
        ProgramError: The model has no config there, or its products are of 4 bits.
    """
    config = _CONFIGS.get(row.fields["model"])
    if config is None:
        raise ProgramError(f"torchtitan's {row.fields['model']} is not described")
    folder = folder_of(programs, "torchtitan", TORCHTITAN)
    length, micro = row.integer("seq_len"), row.integer("local_batch")
    split = {name: row.optional(name) or 1 for name in ("tp", "pp", "cp")}
    degrees = {"tensor": split["tp"], "pipeline": split["pp"], "context": split["cp"]}
    recomputed = _RECOMPUTED.get(row.fields["activation_checkpointing"], "selective")
    values = {
        "job.config-file": folder / "torchtitan/models" / config,
        "model.hf-assets-path": folder / "tests/assets/tokenizer",
        "training.local-batch-size": micro,
        "training.seq-len": length,
        "training.steps": 4,
        "activation-checkpoint.mode": recomputed,
        "metrics.log-freq": 1,
        **{f"parallelism.{name}-parallel-degree": number for name, number in degrees.items()},
    }
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    words += _eight_bits(row.dtype)
    off = ("--profiling.no-enable-profiling", "--metrics.no-enable-tensorboard")
    if is_compiled(row):
        words.append("--compile.enable")
        said = _PYTORCH.search(row.fields.get("torch_version", ""))
        if said is not None and int(said.group(1)) < _LOSS_COMPILED:
            words += ("--compile.components", "model")
    result = loop("torchtitan_train", *words, *off)
    program = Program(
        script=result.script,
        args=result.args,
        ranks=row.integer("n_devices"),
        nodes=num_nodes(row),
        folded_to=0,
        reads=r"tps: (?:\x1b\[[\d;]*m)?([\d,]+)",
        # Of the second step.
        line=2,
        # Its rate is of a device's tokens.
        units_per_step=length * micro / (split["tp"] * split["pp"] * split["cp"]),
        needs=("datasets", "torchdata", "tyro", "tokenizers", "tensorboard", *_library(row.dtype)),
        paths=(folder,),
        variables=(("NO_COLOR", "1"),),
        is_compiled=is_compiled(row),
    )
    return ChosenProgram(program=program, runs_hot=True)


_FMS_SHARES = {
    ("A100-80GB", "Llama-2 13b"): 0.39,
    ("H100-80GB", "Llama-2 13b"): 0.21,
    ("H100-80GB", "Llama-2 34b"): 0.87,
    ("H100-80GB", "Llama-2 70b"): 0.71,
}
"""The shares of layers that are recomputed: from the table of MFU and HFU beside that of tokens."""
_BANDWIDTH = "links.scale_out.bandwidth_gbps"
_FMS_NETWORK = {"A100-80GB": ((_BANDWIDTH, 6.25),), "H100-80GB": ((_BANDWIDTH, 12.5),)}
"""400 and 800 Gb/s per node, as the table says."""


def fms(row: Row, programs: Path) -> ChosenProgram:
    """A step of fms-fsdp: compiled, its weights divided over all devices or over a node."""
    devices, shards = row.integer("n_devices"), row.integer("fsdp")
    program = decoder(
        row,
        dp=devices,
        shard="zero3" if shards == devices else "hsdp",
        shards=shards,
        recompute="none" if row.fields["activation_checkpointing"] == "none" else "full",
        recompute_share=_FMS_SHARES.get((row.device, row.fields["model"]), 1.0),
    )
    # The source gives tokens a second of a device; the file, the step.
    return ChosenProgram(program=program, conditions=_FMS_NETWORK[row.device], runs_hot=True)


def decoder(row: Row, **split: object) -> Program:
    """Return the program of plans with a row's sizes; ``split`` are fields of its config."""
    size = row.integer
    config = {
        "hidden": size("hidden"),
        "layers": size("layers"),
        "heads": size("heads"),
        "kv_heads": size("kv_heads"),
        "head_dim": size("hidden") // size("heads"),
        "intermediate": size("ffn"),
        "vocabulary": size("vocab"),
        "seq": size("seq_len"),
        "microbatch": size("local_batch"),
        "microbatches": 1,
        "compile": is_compiled(row),
        **split,
    }
    return Program(
        script=PROGRAM,
        args=(json.dumps(config),),
        ranks=size("n_devices"),
        nodes=num_nodes(row),
        folded_to=0,
        reads=r'"step_us": ([\d.]+)',
        unit_us=1.0,
        line=2,
        is_compiled=is_compiled(row),
    )
