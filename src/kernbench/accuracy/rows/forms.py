"""Forms of files of measured rows: which category their columns are of, and where they say what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter

from kernbench.errors import UsageError
from kernbench.inputs import shipped_yaml


class Category(StrEnum):
    """What sort of measurement a row is; follows from the columns of its file."""

    GEMM = "gemm"
    MEMBOUND = "membound"
    ATTENTION = "attention"
    MLA = "mla"
    LINEAR_ATTENTION = "linear_attention"
    MOE = "moe"
    COLLECTIVES = "collectives"
    TP_SCALING = "tp_scaling"
    PROGRAMS = "programs"
    SERVING = "serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One form of file."""

    category: Category
    columns: tuple[str, ...]
    """Those that only this form has; they also say what a row's shape is."""
    op: str = "op"
    """The column of the operation, or ``=NAME`` where all rows are of one."""
    dtype: str = "dtype"
    """The column of the dtype, or ``=NAME``."""
    device: str = "device"
    """The column of the device, or ``=NAME``; so for ``source``."""
    boards: Mapping[str, str] = field(default_factory=dict)
    """Devices as machines list them, by the names of files that do not say which one is meant."""
    source: str = "source"
    time: tuple[str, ...] = ("time_us",)
    """Columns of the time, the first that is not empty counts; the unit is in the name."""
    rates: Mapping[str, str] | None = None
    """In place of a time: columns per device and second, and what each counts."""
    together: tuple[str, ...] = ()
    """What rows have in common that a fit may not see one and be scored on another of."""
    shown: tuple[str, ...] = ()
    """What a row is described by; ``columns`` when empty."""
    may_lack_time: bool = False
    """Whether rows without a time (empty, or 0) are counted rather than refused."""
    also: tuple[Form, ...] = ()
    """How the same lines are read as rows of something else that they have a time of."""
    value: bool = False
    """Whether a row names its own metric and unit, in ``metric``, ``value`` and ``unit``."""

    def described(self) -> tuple[str, ...]:
        return self.shown or self.columns


FORMS = TypeAdapter(tuple[Form, ...]).validate_python(
    shipped_yaml("kernbench.accuracy.rows", "forms.yaml")
)

# Other names of a column, in files that lack it.
_OTHER_NAMES = {"op": ("pass", "=gemm"), "dtype": ("quant_dtype",), "attn_dtype": ("dtype",)}
_OP_OF = {Category.GEMM: "gemm", Category.MOE: "fused_moe"}
_US = {"s": 1e6, "ms": 1e3, "us": 1.0}
_COUNTED = re.compile(r"^(\w+) */ *(?:s|sec)$")


def form_of(file: str, columns: set[str], forms: Sequence[Form] = FORMS) -> Form:
    """Return the form of a file with these columns, the first of ``forms`` that fits.

    Raises:
        UsageError: A column that every file needs is missing, or those of all forms are.
    """
    for form in forms:
        if columns.issuperset(form.columns):
            lacking = [
                name
                for name in (form.device, form.op, form.dtype, form.time[0])
                if not name.startswith("=") and _column(form, name, columns) is None
            ]
            if lacking:
                raise UsageError(f"{file}: columns are missing: {', '.join(lacking)}")
            return form
    if "device" not in columns:
        raise UsageError(f"{file}: columns are missing: device")
    known = "; ".join(f"{', '.join(form.columns)} for {form.category}" for form in forms)
    raise UsageError(f"{file}: the columns are of no category; it takes {known}")


def _column(form: Form, name: str, columns: set[str]) -> str | None:
    """Return the column that stands for a name, ``=TEXT`` for what all rows of a form are."""
    if name in columns or name.startswith("="):
        return name
    if name == "op" and form.category in _OP_OF and "pass" not in columns:
        # Files of one operation need no column that says so.
        return f"={_OP_OF[form.category]}" if "kernel" in columns or "impl" in columns else None
    return next((item for item in _OTHER_NAMES.get(name, ()) if item in columns), None)


def text_of(form: Form, name: str, fields: Mapping[str, str]) -> str:
    """Return what a row says under a column of its form, or under one that stands for it."""
    column = _column(form, name, set(fields))
    if column is None:
        return ""
    return column[1:] if column.startswith("=") else fields[column]


def time_of(form: Form, fields: Mapping[str, str], where: str) -> tuple[float, str, str]:
    """Return a row's time in microseconds, of how much it is, and why there is none (time 0).

    Raises:
        UsageError: What should be a number above 0 is none.
    """
    for column in form.time:
        if fields.get(column) and not (form.may_lack_time and _is_0(fields[column])):
            unit = column.rpartition("_")[2]
            return above_0(fields, column, where) * _US[unit], "", ""
    for column, unit in (form.rates or {}).items():
        if fields.get(column):
            return 1e6 / above_0(fields, column, where), unit, ""
    if form.value:
        return _time_of_value(fields, where)
    named = ", ".join((*form.time, *(form.rates or ())))
    if form.may_lack_time:
        return 0.0, "", f"the source gives no {named}"
    raise UsageError(f"{where}: {named} is empty" if not form.rates else _empty(where, form))


def _is_0(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _empty(where: str, form: Form) -> str:
    return f"{where}: {form.time[0]} is empty, and so are {', '.join(form.rates or ())}"


def _time_of_value(fields: Mapping[str, str], where: str) -> tuple[float, str, str]:
    """Read a metric that the row names itself: a time, or how many of something a second."""
    metric, unit = fields["metric"], fields["unit"].strip()
    if not fields["value"]:
        return 0.0, "", f"the source gives no value of {metric}"
    time, _, counted = unit.partition("/")
    if time in _US:
        return above_0(fields, "value", where) * _US[time], counted, ""
    rate = _COUNTED.match(unit)
    if rate is not None:
        per = rate.group(1).removesuffix("s")
        return 1e6 / above_0(fields, "value", where), per, ""
    return 0.0, "", f"{metric} in {unit or 'no unit'} is no time"


def above_0(fields: Mapping[str, str], column: str, where: str) -> float:
    """Return a column as a number.

    Raises:
        UsageError: It is none above 0; names the file, line and column.
    """
    try:
        number = float(fields[column])
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UsageError(f"{where}: {column} must be a number above 0, but got {fields[column]!r}")
    return number
