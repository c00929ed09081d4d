"""Benchmarks of many programs at the rows' commits, and kernels of agents on kernelbench.com."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernbench.accuracy.rows import Row
from validation.predictors.families.chosen import (
    BEFORE_STATIC_LAUNCHER,
    IN_CUDA,
    ChosenProgram,
    is_compiled,
)
from validation.programs import ProgramError, folder_of, loop

_COLD_SINCE = "2025-12-30"
"""From this day on KernelBench flushes L2 before each trial (its commit 6e6fca9c)."""
_LATER_SINCE = "2025-12"
"""From this month on its rows are of PyTorch 2.9, before of 2.5: its commit 509ed996 of November
asks for the later one, and softmax by Inductor still takes four passes there (``old_inductor``)."""
_STILL_FIRST = frozenset({"L4_GCP"})
"""Folders of rows of the earlier one after that, which their softmax and pooling show."""
_OF_OTHER_SIZES = frozenset({"1e2c63f9"})
"""Commits whose times are not of their problems: sizes changed while they were measured. Level2/33
takes 0.2 ms in one and 2.8 in later ones of the same sizes and board, level2/53 16 times as long.
"""
_RAND_MIX = (
    r"^    problem: dict",
    "    torch.rand_mix = lambda *size, **options: torch.rand(*size, **options)\n    problem: dict",
)
"""Problems of some commits draw inputs by what the source's ``utils.py`` adds to ``torch``: tensors
of some distribution, on which no time depends."""
_LEVELS = ("level1", "level2", "level3")


def problem_of(row: Row, programs: Path) -> Path:
    """Return where the problem of a row of KernelBench is, as it was when it was measured."""
    level = row.fields["level"]
    if level not in _LEVELS:
        raise ProgramError("problems above level 3 want weights or data from a network")
    folder = folder_of(programs, "KernelBench", row.fields["commit"][:8]) / "KernelBench"
    return folder / level / row.fields["problem"]


def kernelbench(row: Row, programs: Path) -> ChosenProgram:
    """A problem, as its source times it.

    Raises:
        ProgramError: Its commit does not have what was measured.
    """
    if row.fields["commit"][:8] in _OF_OTHER_SIZES:
        raise ProgramError("its commit has problems of other sizes than were measured")
    config, cold = row.fields["config"], row.fields["date"] >= _COLD_SINCE
    said = config.removeprefix("torch_compile_").replace("inductor_default", "inductor")
    path, compiled = problem_of(row, programs), is_compiled(row)
    program = loop("kernelbench", said, path, "cold" if cold else "warm")
    if path.is_file() and "torch.rand_mix(" in path.read_text(encoding="utf-8"):
        program = replace(program, changes=(_RAND_MIX,))
    is_first = row.fields["date"] < _LATER_SINCE or row.fields["folder"] in _STILL_FIRST
    is_first = is_first and compiled
    return ChosenProgram(
        program=replace(program, is_compiled=compiled, is_before_2_8=is_first),
        conditions=BEFORE_STATIC_LAUNCHER if is_first else (),
    )


def tritonbench(row: Row, programs: Path) -> ChosenProgram:
    """An input of a kernel (perf_G), or of an operation of PyTorch (perf_T)."""
    said = (row.fields[name] for name in ("part", "op", "input_size"))
    program = loop("tritonbench", folder_of(programs, "TritonBench", "603e28a5"), *said)
    return ChosenProgram(program=replace(program, of_kernels=True))


def geak(row: Row, programs: Path) -> ChosenProgram:
    """A configuration of a kernel."""
    clone = folder_of(programs, "GEAK-eval", row.fields["commit"][:8])
    folder, name = clone / "geak_eval/data/ROCm/data/ROCm_v1", Path(row.fields["path"]).stem
    program = loop("geak", folder, name, row.fields["params"])
    return ChosenProgram(program=replace(program, of_kernels=True))


def agents(row: Row, programs: Path) -> ChosenProgram:
    """A kernel that an agent wrote, on one shape of its problem."""
    clone = folder_of(programs, "kernelbench.com", "c7d92211")
    gpu, run = row.fields["gpu"], f"{row.fields['run_id']}_solution.py.txt"
    files = [clone / "public/runs" / text for text in (f"{gpu}/{run}", run)]
    solution = next((file for file in files if file.is_file()), files[-1])
    if not solution.is_file():
        raise ProgramError(f"its repository has no solution of {row.op}")
    text = solution.read_text(encoding="utf-8")
    if any(word in text for word in ("__global__", "cpp_extension", "cuda.bindings")):
        raise ProgramError(IN_CUDA)
    where = solution.relative_to(clone)
    program = loop("agents", clone, f"problems-{gpu}", row.op, where, row.fields["idx"])
    return ChosenProgram(program=program)
