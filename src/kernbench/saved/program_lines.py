"""Which lines of a saved run's program caused what, as parts of its file (ADR-0172)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kernbench.op_log import OpLog, ProgramLines
from kernbench.saved.parts import read_table, write_table

SITES, OF_COMMANDS, OF_SPANS = "lines.parquet", "lines_commands.parquet", "lines_hosts.parquet"
_NUMBER = pa.int32()
_SITES = pa.schema([("file", pa.string()), ("line", _NUMBER)])


def write_lines(
    archive: zipfile.ZipFile, commands: Sequence[int], lines: ProgramLines
) -> list[str]:
    """Write the lines, the number of each command's and of each host span's; return their files."""
    files, numbers = zip(*lines.sites, strict=True)
    write_table(archive, SITES, pa.table([files, numbers], schema=_SITES))
    found = map(lines.of_commands.get, commands)
    for name, values in ((OF_COMMANDS, [each or 0 for each in found]), (OF_SPANS, lines.of_spans)):
        column = pa.array(np.array(values, np.int32), _NUMBER)
        write_table(archive, name, pa.table([column], names=["line"]))
    return sorted({*files} - {""})


def read_lines(archive: zipfile.ZipFile, log: OpLog) -> ProgramLines | None:
    """Return the lines of a log that has just been read; None if it was saved without."""
    if SITES not in archive.namelist():
        return None
    sites = read_table(archive, SITES)
    numbers = read_table(archive, OF_COMMANDS)["line"].to_pylist()
    return ProgramLines(
        list(zip(*(column.to_pylist() for column in sites.columns), strict=True)),
        dict(zip([each.launch_id for each in log.instances], numbers, strict=True)),
        read_table(archive, OF_SPANS)["line"].to_pylist(),
    )
