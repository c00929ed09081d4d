"""Which lines of a saved run's program caused what, as parts of its file (ADR-0172)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kernbench.op_log import ProgramLines
from kernbench.saved.consistency import numbers, texts
from kernbench.saved.layout import LINES, LINES_OF_COMMANDS, LINES_OF_SPANS
from kernbench.saved.opened import RunFile
from kernbench.saved.parts import write_table


def write_lines(
    archive: zipfile.ZipFile, commands: Sequence[int], lines: ProgramLines
) -> list[str]:
    """Write the lines, the number of each command's and of each host span's; return their files."""
    files, of_files = zip(*lines.sites, strict=True)
    write_table(archive, LINES.part, pa.table([files, of_files], schema=LINES.schema))
    numbers = [command or 0 for command in map(lines.of_commands.get, commands)]
    for layout, values in ((LINES_OF_COMMANDS, numbers), (LINES_OF_SPANS, lines.of_spans)):
        column = pa.array(np.array(values, np.int32))
        write_table(archive, layout.part, pa.table([column], schema=layout.schema))
    return sorted({*files} - {""})


def read_lines(file: RunFile, launches: Sequence[int], num_spans: int) -> ProgramLines | None:
    """Return the lines of commands and of host spans; None if a run was saved without."""
    if not file.has(LINES.part):
        return None
    sites = file.table(LINES, {})
    counts = {"lines": sites.num_rows, "commands": len(launches), "host spans": num_spans}
    of_commands, of_spans = (
        numbers(file.table(layout, counts), "line").tolist()
        for layout in (LINES_OF_COMMANDS, LINES_OF_SPANS)
    )
    return ProgramLines(
        list(zip(texts(sites, "file"), numbers(sites, "line").tolist(), strict=True)),
        dict(zip(launches, of_commands, strict=True)),
        of_spans,
    )
