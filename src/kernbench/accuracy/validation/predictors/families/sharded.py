"""Training on the devices of a node: LLM Foundry's MPT."""

from __future__ import annotations

from pathlib import Path

from kernbench.accuracy.programs import ProgramError, loop
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
    more = (recomputed, row.dtype, row.fields["parallelism"])
    made = loop("mpt", *sizes, *more, ranks=row.integer("n_devices"))
    # The source gives tokens a second of all devices; the file, the step.
    return ChosenProgram(program=made)
