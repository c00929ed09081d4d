"""Forwards of models of Hugging Face's transformers: Llama with accelerate, and vision."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from validation.predictors.families.chosen import (
    A100_40G,
    BEFORE_STATIC_LAUNCHER,
    ChosenProgram,
    is_compiled,
)
from validation.programs import Program, ProgramError, loop

_NEEDS = ("transformers",)
_MODE = re.compile(r"(default|reduce-overhead|max-autotune)")
_COMPILERS = {
    "yes (inductor, CUDA graphs)": "reduce-overhead",
    "yes (inductor, no CUDA graphs)": "default",
    "aot_eager backend": "aot_eager",
}
"""How columns of PyTorch's dashboards are asked for: a mode of ``torch.compile``, or a backend."""
_FIRST_DASHBOARD = "pt2-dash-1831"
_FIRST_LENGTHS = {"MBart": 128}
"""Sequences of the first dashboard where they were shorter: 16 of MBart take less time there than 2
in the next one, and 16 of 1024 tokens do not fit in any A100."""
_LLAMA = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "local_batch", "seq_len")


def llama_forward(row: Row, programs: Path) -> ChosenProgram:
    """The forward that accelerate's benchmark of regional compilation times.

    The source names no device. What it took while the device was busy is an RTX 4090's: 18.9 ms for
    16 GB of weights and 54 ms for 8 TFLOP of the compiled 8B model, where A100s take 13 and 44. Of
    its host all is known by the rows of batch 1: it is as fast as those of A100s.
    """
    program = loop("hf_llama", *[row.integer(name) for name in _LLAMA], needs=_NEEDS)
    conditions: tuple[tuple[str, float], ...] = (("host.slowdown", 1.0),)
    if is_compiled(row):
        what = "regional" if "regional" in row.fields["compile"] else "full"
        program = replace(program, args=(*program.args, what), is_compiled=True)
        conditions += BEFORE_STATIC_LAUNCHER
    return ChosenProgram(program=program, device="RTX 4090", conditions=conditions)


def vision_forward(row: Row, programs: Path) -> ChosenProgram:
    """The forward of a checkpoint's architecture on one size of pictures.

    The source says A100, V100 and T4: what Google's notebooks lend, whose A100 is of 40 GB. A time
    is the mean of 300 forwards in turn.

    Raises:
        ProgramError: The row is of a mode of ``torch.compile`` that it does not name.
    """
    checkpoint = row.fields["program_config"].partition(";")[0].strip()
    program: Program = loop("hf_vision", checkpoint, row.integer("local_batch"), needs=_NEEDS)
    if is_compiled(row):
        mode = _MODE.search(row.fields["compile"])
        if mode is None:
            raise ProgramError(f"no mode of torch.compile in {row.fields['compile']!r}")
        program = replace(
            program, args=(*program.args, mode.group(1)), changes=_WITHOUT_LAYOUTS, is_compiled=True
        )
        return ChosenProgram(program=program, conditions=_FIRST_GRAPHS, runs_hot=True)
    conditions = _NOTEBOOKS if row.device == "A100" else ()
    return ChosenProgram(program=program, conditions=conditions, runs_hot=True)


_NOTEBOOKS = (("host.slowdown", 1.12),)
"""The host of the A100 of Google's notebooks: fitted to its eager batches of 1 that wait for it."""
_FIRST_GRAPHS = (("host.compiled_launch_us", 44.0), ("host.compiled_empty_us", 5.0))
"""Graphs of PyTorch 2.0: memory and views by way of the dispatcher, as eager ones are.

A launch of a kernel in Triton takes longer there than later: fitted to batches of 1 of BEiT (34 and
20 us more than 16 on A100 and V100), ViT (30 on V100) and MobileNet (27 on A100), whose time is
their hosts'. On the A100, ViT and Segformer would ask for 59 and 71, where the slower V100 runs
both in less time than the A100, with as many launches.
"""
_WITHOUT_LAYOUTS = (
    (
        r"mode=sys\.argv\[3\]",
        "options={'layout_optimization': False, 'triton.cudagraphs': sys.argv[3] != 'default'}",
    ),
)
"""PyTorch 2.0, and the 2.1 of the rows, left convolutions in the layout that a program has."""


def dynamo_benchmark(row: Row, programs: Path) -> ChosenProgram:
    """Forward and backward of a model, as PyTorch's benchmarks of its compiler time them.

    Their batches are the largest that fit in an A100 of 40 GB, says benchmarks/dynamo.

    Raises:
        ProgramError: The model is one of another suite than Hugging Face's, or its compiler is
            none of PyTorch's.
    """
    if not row.fields["program"].endswith("huggingface.py"):
        raise ProgramError("models of torchbench are not described")
    precision = "amp" if row.dtype.startswith("amp") else "float32"
    model = row.fields["model"]
    length = _FIRST_LENGTHS.get(model[:5]) if row.source == _FIRST_DASHBOARD else None
    program = loop(
        "hf_training",
        model,
        row.integer("local_batch"),
        precision,
        *([] if length is None else [length]),
        needs=_NEEDS,
    )
    if is_compiled(row):
        how = _COMPILERS.get(row.fields["compile"].strip())
        if how is None:
            raise ProgramError(f"no compiler of PyTorch's is {row.fields['compile']!r}")
        program = replace(program, args=(*program.args, how), is_compiled=True)
    return ChosenProgram(program=program, device=A100_40G if row.device == "A100" else "")
