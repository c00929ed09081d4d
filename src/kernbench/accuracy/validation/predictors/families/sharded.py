"""Training on the devices of a node: LLM Foundry's MPT, torchtitan."""

from __future__ import annotations

from pathlib import Path

from kernbench.accuracy.programs import Program, ProgramError, folder_of, loop
from kernbench.accuracy.validation.predictors.families.chosen import ChosenProgram
from kernbench.accuracy.validation.rows.reference import Row

_MPT = ("layers", "hidden", "heads", "ffn", "vocab", "seq_len", "local_batch", "grad_accum")


def mpt(row: Row, programs: Path) -> ChosenProgram:
    """A step of an MPT, by a program with equal operations.

    Raises:
        ProgramError: Its products are of 8 bits.
    """
    if "fp8" in row.dtype:
        raise ProgramError("MPT in fp8 (Transformer Engine) is not described")
    sizes = [row.integer(each) for each in _MPT]
    recomputed = row.fields["activation_checkpointing"] or "none"
    more = (recomputed, row.fields["parallelism"])
    made = loop("mpt", *sizes, *more, ranks=row.integer("n_devices"))
    # The source gives tokens a second of all devices; the file, the step.
    return ChosenProgram(program=made)


TORCHTITAN = "73a0e69"
"""v0.2.2, the release that runs with this PyTorch; rows are of a commit of December 2024."""
_CONFIGS = {
    "Llama-3.1 8B": "llama3/train_configs/llama3_8b.toml",
    "Llama-3.1 70B": "llama3/train_configs/llama3_70b.toml",
    "Llama-3.1 405B": "llama3/train_configs/llama3_405b.toml",
}
_RECOMPUTED = {"selective (op)": "selective", "full": "full", "none": "none"}


def torchtitan(row: Row, programs: Path) -> ChosenProgram:
    """A step of torchtitan's trainer, by its config of the model.

    Raises:
        ProgramError: The model has no config there, or its products are of 8 bits.
    """
    config = _CONFIGS.get(row.fields["model"])
    if config is None:
        raise ProgramError(f"torchtitan's {row.fields['model']} is not described")
    if "float8" in row.dtype:
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
    made = loop("torchtitan_train", *words, *off)
    program = Program(
        script=made.script,
        args=made.args,
        ranks=row.integer("n_devices"),
        reads=r"tps: (?:\x1b\[[\d;]*m)?([\d,]+)",
        # Each rank of those whose output is shown says it: the second step, by the last of them.
        line=4,
        # Its rate is of a device's tokens.
        units_per_step=length * micro / (split["tp"] * split["pp"] * split["cp"]),
        needs=("datasets", "torchdata", "tyro", "tokenizers", "tensorboard"),
        paths=(folder,),
        variables=(("NO_COLOR", "1"),),
    )
    return ChosenProgram(program=program)
