"""Measured rows: CSV files whose columns say which category a row is of."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import md5
from pathlib import Path

from kernbench.errors import UsageError


class Category(StrEnum):
    """What sort of measurement a row is; follows from the columns of its file."""

    GEMM = "gemm"
    MEMBOUND = "membound"
    COLLECTIVES = "collectives"
    TP_SCALING = "tp_scaling"


# The columns that only a category has, in the order in which they are looked for.
_SHAPES = {
    Category.TP_SCALING: ("tp", "pp"),
    Category.GEMM: ("m", "n", "k"),
    Category.MEMBOUND: ("rows", "cols"),
    Category.COLLECTIVES: ("n_ranks", "bytes"),
}
_COMMON = ("device", "op", "dtype", "time_us", "source")

# What sources of whole models give in place of a time, the plainest first, and the unit of which
# a row without a time is the device time.
_RATES = {"tokens_per_s_per_dev": "token", "tflops": "TFLOP", "mfu_pct": "% of peak"}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    category: Category
    device: str
    op: str
    dtype: str
    source: str
    time_us: float
    """Of what was measured: :attr:`per` says of how much of it."""
    fields: Mapping[str, str]
    """Every column of the file; empty where the source gives nothing."""
    file: str
    line: int
    per: str = ""
    """Empty for a time as the source gives it. ``token`` or ``TFLOP`` where it gives a rate per
    device and second: then the time is what a device takes for one of them."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def integer(self, column: str) -> int:
        """Return a column as an integer above 0.

        Raises:
            UsageError: It is none; names the file, line and column.
        """
        found = self.optional(column)
        if found is None:
            raise UsageError(f"{self.where}: column {column} is empty")
        return found

    def optional(self, column: str) -> int | None:
        """Return a column as an integer above 0, None where it is empty or missing."""
        text = self.fields.get(column, "")
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 1 <= number < float("inf") or number != int(number):
            raise UsageError(
                f"{self.where}: column {column} must be a whole number above 0, but got {text!r}"
            )
        return int(number)

    def __str__(self) -> str:
        shape = [f"{each}={self.fields[each]}" for each in _shown(self.category, self.fields)]
        return f"{self.device} {self.op} {self.dtype} {' '.join(shape)}"


def read_rows(paths: Iterable[str | Path]) -> list[Row]:
    """Return the rows of CSV files, in order.

    Raises:
        UsageError: A file cannot be read, has columns of no category, or a row has no time.
    """
    found: list[Row] = []
    for each in paths:
        path = Path(each)
        try:
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                try:
                    found += _read(path.name, reader)
                except csv.Error as error:
                    line = reader.line_num + 1
                    raise UsageError(f"{path.name}:{line}: cannot be read: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from None
    return found


def sampled(rows: list[Row], every: Mapping[Category, int]) -> list[Row]:
    """Return one row in so many of each category, picked by a hash: the same ones every time.

    Categories that ``every`` does not name are kept whole.

    Raises:
        UsageError: A number is below 1.
    """
    for number in every.values():
        if number < 1:
            raise UsageError(f"every must be at least 1, but got {number}")
    return [row for row in rows if _hash(row) % every.get(row.category, 1) == 0]


def _hash(row: Row) -> int:
    return int(md5(str(row).encode()).hexdigest(), 16)


def category_of(file: str, columns: Iterable[str]) -> Category:
    """Return what the rows of a file with these columns are.

    Raises:
        UsageError: A column that every file needs is missing, or those of all categories are.
    """
    columns = set(columns)
    missing = [each for each in _COMMON if each not in columns]
    if missing:
        raise UsageError(f"{file}: columns are missing: {', '.join(missing)}")
    for category, shape in _SHAPES.items():
        if columns.issuperset(shape):
            return category
    known = "; ".join(f"{', '.join(shape)} for {name}" for name, shape in _SHAPES.items())
    raise UsageError(f"{file}: the columns are of no category; it takes {known}")


def _read(file: str, reader: csv.DictReader[str]) -> Iterable[Row]:
    category = category_of(file, reader.fieldnames or ())
    for fields in reader:
        where = f"{file}:{reader.line_num}"
        if None in fields or None in fields.values():
            raise UsageError(f"{where}: the row has not {len(reader.fieldnames or ())} columns")
        time_us, per = _time(category, fields, where)
        yield Row(
            category=category,
            device=fields["device"],
            op=fields["op"],
            dtype=fields["dtype"],
            source=fields["source"],
            time_us=time_us,
            fields=fields,
            file=file,
            line=reader.line_num,
            per=per,
        )


def _time(category: Category, fields: Mapping[str, str], where: str) -> tuple[float, str]:
    """Return a row's time, or the device time of what its rate counts, and the unit of that."""
    if fields["time_us"] or category is not Category.TP_SCALING:
        return _above_0(fields, "time_us", where), ""
    for column, unit in _RATES.items():
        if fields.get(column):
            return 1e6 / _above_0(fields, column, where), unit
    raise UsageError(f"{where}: time_us is empty, and so are {', '.join(_RATES)}")


def _above_0(fields: Mapping[str, str], column: str, where: str) -> float:
    try:
        number = float(fields[column])
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UsageError(f"{where}: {column} must be a number above 0, but got {fields[column]!r}")
    return number


def _shown(category: Category, fields: Mapping[str, str]) -> list[str]:
    names = list(_SHAPES[category])
    if category is Category.TP_SCALING:
        names = ["model", "seq", "batch", "tp", "pp", "cp", "dp"]
    return [each for each in names if fields.get(each)]
