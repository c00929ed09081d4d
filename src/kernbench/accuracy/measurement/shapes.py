"""The shapes to measure: the default list, from options, or from a file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.inputs import opened_csv
from kernbench.ops import ELEMENTWISE_OPS, ROW_OPS

MEMBOUND_OPS = tuple(sorted(ELEMENTWISE_OPS | ROW_OPS))

# The default list: a decode step, a small batch, and prefills; weights of 2 to 400 MB.
_GEMM_M = (1, 16, 64, 256, 1024, 4096)
_GEMM_NK = (
    (1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (8192, 8192), (12288, 4096),
    (4096, 12288), (16384, 4096), (5120, 16384), (7168, 2048), (2048, 7168), (10240, 256),
)  # fmt: skip
_ROW_SHAPES = ((1024, 1024), (4096, 2048), (8192, 4096), (16384, 8192), (32768, 8192))


@dataclass(frozen=True, slots=True)
class GemmShape:
    """``C[m, n] = A[m, k] @ B[k, n]``."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class RowShape:
    """An operation of kernbench.ops on ``rows`` x ``cols`` elements."""

    op: str
    rows: int
    cols: int


Shape = GemmShape | RowShape


def default_shapes() -> list[Shape]:
    """Return the default list: 72 GEMMs and 5 sizes of every other op."""
    gemms = [GemmShape(m, n, k) for n, k in _GEMM_NK for m in _GEMM_M]
    return [*gemms, *(RowShape(op, *size) for op in MEMBOUND_OPS for size in _ROW_SHAPES)]


def parse_gemm(text: str) -> GemmShape:
    """Return the shape of ``M,N,K``.

    Raises:
        UsageError: It is not three whole numbers above 0.
    """
    return GemmShape(*_sizes(text, "M,N,K"))


def read_shapes(path: str | Path) -> list[Shape]:
    """Return the distinct shapes of a CSV file with the columns m, n, k or op, rows, cols.

    A file of measured rows is such a file, so that another device can be measured at its shapes.

    Raises:
        UsageError: The file cannot be read, or has neither set of columns; a size is not a whole
        number above 0; an op is unknown. The text names the line.
    """
    path = Path(path)
    with opened_csv(path) as reader:
        return list(dict.fromkeys(_of_lines(path.name, reader)))


def _of_lines(file: str, reader: csv.DictReader[str]) -> Iterator[Shape]:
    columns = set(reader.fieldnames or ())
    if columns.issuperset(("m", "n", "k")):
        names: Sequence[str] = ("m", "n", "k")
    elif columns.issuperset(("op", "rows", "cols")):
        names = ("rows", "cols")
    else:
        raise UsageError(f"{file}: a list of shapes has the columns m, n, k or op, rows, cols")
    for fields in reader:
        where = f"{file}:{reader.line_num}"
        sizes = _sizes(",".join(fields[name] or "" for name in names), ",".join(names), where)
        if len(sizes) == len(("m", "n", "k")):
            yield GemmShape(*sizes)
        elif fields["op"] not in MEMBOUND_OPS:
            known = ", ".join(MEMBOUND_OPS)
            raise UsageError(f"{where}: no kernel for op {fields['op']!r}; known: {known}")
        else:
            yield RowShape(fields["op"], *sizes)


def _sizes(text: str, names: str, where: str = "") -> list[int]:
    parts = text.split(",")
    if len(parts) != len(names.split(",")) or not all(
        part.strip().isdecimal() and int(part) > 0 for part in parts
    ):
        raise UsageError(
            f"{where}{': ' if where else ''}{names} must be whole numbers above 0, but got {text!r}"
        )
    return [int(part) for part in parts]
