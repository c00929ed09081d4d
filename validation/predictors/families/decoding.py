"""Tokens one by one: gpt-fast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from validation.predictors.families.chosen import ChosenProgram, is_compiled
from validation.programs import ProgramError, folder_of, loop

_COMMIT = "32971d3"
_NAMES = {
    "Llama-2-7B": "Llama-2-7b-chat-hf",
    "Llama-2-13B": "13B",
    "Llama-2-70B": "70B",
    "CodeLlama-34B": "34B",
    "Llama-3-8B": "llama-3-8b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3-70B": "llama-3-70b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Mixtral-8x7B": "Mixtral-8x7B-v0.1",
}
"""Models of the rows, as model.py calls their configs."""
_OF_EXPERTS = "mixtral-moe"
"""The folder that has a model of its own for mixtures of experts."""
_WEIGHTS = {
    "bf16": (),
    "bfloat16": (),
    "int8 weights": ("int8",),
    "int4 weights G=32": ("int4.g32",),
}
"""What the loop is told of the weights, by a row's dtype."""
_BY_PEERS = "ENABLE_INTRA_NODE_COMM"
"""The variable by which PyTorch reduces with kernels of its own."""


def gpt_fast(row: Row, programs: Path) -> ChosenProgram:
    """A token by the loop of generate.py, with --compile where the row was compiled.

    Raises:
        ProgramError: The model has no config there, or its weights are not described.
    """
    name = _NAMES.get(row.fields["model"])
    if name is None:
        raise ProgramError(f"gpt-fast's {row.fields['model']} is not described")
    if row.dtype not in _WEIGHTS:
        raise ProgramError(f"gpt-fast with {row.dtype} is not described")
    folder = folder_of(programs, "gpt-fast", _COMMIT)
    if name.startswith("Mixtral"):
        folder /= _OF_EXPERTS
    program = loop(
        "gpt_fast",
        name,
        *_WEIGHTS[row.dtype],
        ranks=row.integer("n_devices"),
        needs=("sentencepiece",),
    )
    if is_compiled(row):
        args = (*program.args, "compiled")
        program = replace(program, args=args, is_compiled=True, is_before_2_8=True)
    if program.ranks > 1:
        asks = _BY_PEERS in row.fields.get("parallelism", "")
        program = replace(program, folded_to=0, variables=((_BY_PEERS, "1"),) if asks else ())
    return ChosenProgram(program=replace(program, paths=(folder,)))
