"""Measured rows: CSV files whose columns determine the category of their rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

from kernbench.accuracy.rows.forms import FORMS, Category, Form, form_of, text_of, time_of
from kernbench.errors import UsageError
from kernbench.inputs import opened_csv


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    category: Category
    device: str
    op: str
    dtype: str
    source: str
    time_us: float
    """The time of what was measured, or of one unit of it (:attr:`per`); 0 if there is none."""
    fields: Mapping[str, str]
    """All columns of the file; empty where the source gives nothing."""
    file: str
    line: int
    form: Form = FORMS[-1]
    """The form of the file that the row is in."""
    per: str = ""
    """Empty for a time as the source gives it. ``token`` or ``TFLOP`` if it gives a rate per device
    and second: the time is then a device's time for one of them."""
    why_no_time: str = ""
    """For a row without a time: what the source gives instead."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def integer(self, column: str) -> int:
        """Return a column as an integer above 0.

        Raises:
            UsageError: It is not one; the text names the file, line and column.
        """
        number = self.optional(column)
        if number is None:
            raise UsageError(f"{self.where}: column {column} is empty")
        return number

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
        shape = [
            f"{name}={self.fields[name]}" for name in self.form.described() if self.fields.get(name)
        ]
        return f"{self.device} {self.op} {self.dtype} {' '.join(shape)}"


def read_rows(paths: Iterable[str | Path], forms: Sequence[Form] = FORMS) -> list[Row]:
    """Return the rows of CSV files, in order; each file has one of the ``forms``.

    Raises:
        UsageError: A file cannot be read, its columns match no category, or a row has no time.
    """
    rows: list[Row] = []
    for path in map(Path, paths):
        with opened_csv(path) as reader:
            rows += _read(path.name, reader, forms)
    return rows


def sampled(rows: list[Row], every: Mapping[str, int]) -> list[Row]:
    """Return one in ``every`` rows of each category, chosen by a hash: the same rows every time.

    A file's own number, by its name, comes before that of its category. Rows of what ``every`` does
    not name are kept.

    Raises:
        UsageError: A number is below 1.
    """
    for number in every.values():
        if number < 1:
            raise UsageError(f"every must be at least 1, but got {number}")
    return [
        row for row in rows if _hash(row) % every.get(row.file, every.get(row.category, 1)) == 0
    ]


_SPELLED = {
    "bf16": ("bfloat16", "bf16"),
    "fp16": ("float16", "half", "fp16", "f16"),
    "fp32": ("float32", "float", "single", "fp32", "f32"),
    "fp8": ("float8", "fp8", "f8", "e4m3", "fp8_e4m3", "float8_e4m3", "float8_e4m3fn"),
    "int8": ("int8", "i8", "char"),
}
"""How people write the dtypes of rows, by the name that predictors know."""
_DTYPES = {other: name for name, others in _SPELLED.items() for other in others}
_OF_NCCL = ("half", "float", "bfloat16")
"""Names of nccl-tests, which stay in rows of collectives."""


def _dtype_of(form: Form, fields: Mapping[str, str]) -> str:
    """Return a row's dtype, of products, streams and collectives by one name, however written.

    Rows of a serving stack have the stack's names for its kernels.
    """
    text = text_of(form, form.dtype, fields)
    of_users = (Category.GEMM, Category.MEMBOUND, Category.ATTENTION, Category.COLLECTIVES)
    if form.category not in of_users or "framework" in fields:
        return text
    if form.category is Category.COLLECTIVES and text in _OF_NCCL:
        return text
    return _DTYPES.get(text.removeprefix("torch.").lower(), text)


def _hash(row: Row) -> int:
    return int(md5(str(row).encode()).hexdigest(), 16)


def _read(file: str, reader: csv.DictReader[str], forms: Sequence[Form]) -> Iterable[Row]:
    of_file = form_of(file, set(reader.fieldnames or ()), forms)
    for fields in reader:
        where = f"{file}:{reader.line_num}"
        if None in fields or None in fields.values():
            raise UsageError(f"{where}: the row has not {len(reader.fieldnames or ())} columns")
        for form in (of_file, *of_file.also):
            time_us, per, why_no_time = time_of(form, fields, where)
            device = text_of(form, form.device, fields)
            yield Row(
                category=form.category,
                device=form.boards.get(device, device),
                op=text_of(form, form.op, fields),
                dtype=_dtype_of(form, fields),
                source=text_of(form, form.source, fields) or Path(file).stem,
                time_us=time_us,
                fields=fields,
                file=file,
                line=reader.line_num,
                form=form,
                per=per,
                why_no_time=why_no_time,
            )
