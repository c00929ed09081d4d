"""Training of GPT-2 by the scripts of build-nanogpt and nanoGPT, as they are."""

from __future__ import annotations

import re
from pathlib import Path

from kernbench.accuracy.programs import LOOPS, Program, ProgramError, folder_of
from kernbench.accuracy.validation.predictors.families.chosen import A100_80G, ChosenProgram
from kernbench.accuracy.validation.rows.reference import Row

_COMMIT = re.compile(r"git checkout (\w+)")
_PRECISION = r"set_float32_matmul_precision"
NANOGPT = "53d56b82"
"""The last commit before the vocabulary was padded, as the readme's times were taken."""


def build_nanogpt(row: Row, programs: Path) -> ChosenProgram:
    """A commit of the lecture's script; the device is an A100 of 80 GB, as the lecture says."""
    said = row.fields["program_config"]
    found = _COMMIT.search(said)
    if found is None:
        raise ProgramError(f"no commit of build-nanogpt in {said[:60]!r}")
    folder = folder_of(programs, "build-nanogpt", found.group(1)[:7])
    program = Program(
        script=folder / "train_gpt2.py",
        reads=r"dt: ([\d.]+)ms",
        line=3,
        folder=folder,
        paths=(LOOPS / "offline",),
        without=_PRECISION if f"without its {_PRECISION}" in said else "",
    )
    return ChosenProgram(program=program, device=A100_80G)


def nanogpt(row: Row, programs: Path) -> ChosenProgram:
    """The benchmark of nanoGPT, on random tokens."""
    folder = folder_of(programs, "nanoGPT", NANOGPT)
    program = Program(
        script=folder / "bench.py",
        args=("--real_data=False", "--compile=False"),
        reads=r"time per iteration: ([\d.]+)ms",
        folder=folder,
        paths=(folder,),
    )
    return ChosenProgram(program=program)
