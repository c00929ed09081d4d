"""Training on the devices of one or more nodes: LLM Foundry's MPT, torchtitan.

All ranks of these programs do the same but for what collectives move, so that one runs for all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from validation.predictors.clusters.models import precision_of
from validation.predictors.families.chosen import (
    ChosenProgram,
    is_compiled,
    num_nodes,
)
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
    sizes = [row.integer(each) for each in _MPT]
    recomputed = row.fields["activation_checkpointing"] or "none"
    more = (recomputed, row.fields["parallelism"], _MPT_ATTENTION)
    made = loop("mpt", *sizes, *more, ranks=row.integer("n_devices"))
    made = replace(made, nodes=num_nodes(row), folded_to=0)
    # The source gives tokens a second of all devices; the file, the step.
    return ChosenProgram(program=made, runs_hot=True)


TORCHTITAN = "73a0e69"
"""v0.2.2, the release that runs with this PyTorch; rows are of a commit of December 2024."""
_CONFIGS = {
    "Llama-3.1 8B": "llama3/train_configs/llama3_8b.toml",
    "Llama-3.1 70B": "llama3/train_configs/llama3_70b.toml",
    "Llama-3.1 405B": "llama3/train_configs/llama3_405b.toml",
}
_RECOMPUTED = {"selective (op)": "selective", "full": "full", "none": "none"}


def torchtitan(row: Row, programs: Path) -> ChosenProgram:
    """A step of torchtitan's trainer, by its config of the model, compiled by block if the row was.

    Raises:
        ProgramError: The model has no config there, or its products are of 8 bits.
    """
    config = _CONFIGS.get(row.fields["model"])
    if config is None:
        raise ProgramError(f"torchtitan's {row.fields['model']} is not described")
    if precision_of(row.dtype) != "bf16":
        raise ProgramError("torchtitan with float8 (torchao) is not described")
    folder = folder_of(programs, "torchtitan", TORCHTITAN)
    length, micro = row.integer("seq_len"), row.integer("local_batch")
    split = {each: row.optional(each) or 1 for each in ("tp", "pp", "cp")}
    degrees = {"tensor": split["tp"], "pipeline": split["pp"], "context": split["cp"]}
    recomputed = _RECOMPUTED.get(row.fields["activation_checkpointing"], "selective")
    given = {
        "job.config-file": folder / "torchtitan/models" / config,
        "model.hf-assets-path": folder / "tests/assets/tokenizer",
        "training.local-batch-size": micro,
        "training.seq-len": length,
        "training.steps": 4,
        "activation-checkpoint.mode": recomputed,
        "metrics.log-freq": 1,
        **{f"parallelism.{name}-parallel-degree": number for name, number in degrees.items()},
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    off = ("--profiling.no-enable-profiling", "--metrics.no-enable-tensorboard")
    if is_compiled(row):
        words.append("--compile.enable")
    made = loop("torchtitan_train", *words, *off)
    program = Program(
        script=made.script,
        args=made.args,
        ranks=row.integer("n_devices"),
        nodes=num_nodes(row),
        folded_to=0,
        reads=r"tps: (?:\x1b\[[\d;]*m)?([\d,]+)",
        # Of the second step.
        line=2,
        # Its rate is of a device's tokens.
        units_per_step=length * micro / (split["tp"] * split["pp"] * split["cp"]),
        needs=("datasets", "torchdata", "tyro", "tokenizers", "tensorboard"),
        paths=(folder,),
        variables=(("NO_COLOR", "1"),),
        is_compiled=is_compiled(row),
    )
    return ChosenProgram(program=program, runs_hot=True)
