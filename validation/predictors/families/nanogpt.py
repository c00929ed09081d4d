"""Training of GPT-2 by the scripts of build-nanogpt and nanoGPT, as they are."""

from __future__ import annotations

import re
from pathlib import Path

from kernbench.accuracy.rows import Row
from validation.predictors.families.chosen import A100_80G, ChosenProgram, is_compiled
from validation.programs import LOOPS, Program, ProgramError, folder_of

_COMMIT = re.compile(r"git checkout (\w+)")
_PRECISION = "set_float32_matmul_precision"
NANOGPT = "5a725d90"
"""The commit that says the times, of December 2022: its attention is written out."""
_FUSED = (
    r"^from model import .*$",
    r"\g<0>\nimport model\nmodel.fused_gelu = torch.nn.functional.gelu",
)
"""TorchScript makes one kernel each way of the model's gelu, as the library's own is."""


def build_nanogpt(row: Row, programs: Path) -> ChosenProgram:
    """A commit of the lecture's script; the device is an A100 of 80 GB, as the lecture says."""
    said = row.fields["program_config"]
    result = _COMMIT.search(said)
    if result is None:
        raise ProgramError(f"no commit of build-nanogpt in {said[:60]!r}")
    folder = folder_of(programs, "build-nanogpt", result.group(1)[:7])
    program = Program(
        script=folder / "train_gpt2.py",
        reads=r"dt: ([\d.]+)ms",
        line=3,
        folder=folder,
        paths=(LOOPS / "offline",),
        changes=((rf"^.*{_PRECISION}.*$", ""),) if f"without its {_PRECISION}" in said else (),
        is_compiled=is_compiled(row),
    )
    return ChosenProgram(program=program, device=A100_80G, runs_hot=True)


def nanogpt(row: Row, programs: Path) -> ChosenProgram:
    """The benchmark of nanoGPT, on random tokens; then it had its settings in its text."""
    folder = folder_of(programs, "nanoGPT", NANOGPT)
    program = Program(
        script=folder / "bench.py",
        changes=(
            (r"^batch_size = .*$", f"batch_size = {row.integer('local_batch')}"),
            (r"^real_data = True$", "real_data = False"),
            *(() if is_compiled(row) else (_FUSED,)),
            (r"^compile_model = True$", f"compile_model = {is_compiled(row)}"),
        ),
        reads=r"time per iteration: ([\d.]+)ms",
        folder=folder,
        paths=(folder,),
        is_compiled=is_compiled(row),
    )
    return ChosenProgram(program=program, runs_hot=True)
