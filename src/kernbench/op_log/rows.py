"""Rows of one template in the form that every reader of the log shares."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.commands import Engine
from kernbench.errors import InternalError
from kernbench.op_log.log import ROW_COLUMNS, Column, Template

TEXT_COLUMNS = frozenset({"engine", "kind", "src_space", "dst_space", "file"})
WIDE_COLUMNS = frozenset(
    {"program_first", "program_count", "count", "start_ps", "end_ps", "busy_ps", "bytes", "flops"}
)
_REQUIRED = ("engine", "kind", "start_ps", "end_ps")
_DEFAULTS: dict[str, Any] = {
    "rank": -1, "cube": -1, "pe_first": -1, "pe_count": 0, "program_first": -1, "program_count": 0,
    "count": 1, "bytes": 0, "flops": 0, "src_space": "none", "dst_space": "none", "src_param": -1,
    "dst_param": -1, "step": -1, "chunk": -1, "peer": -1, "link": -1, "file": "", "line": 0,
}  # fmt: skip
_CACHED_ROWS = 1_000_000


class TextColumn(np.ndarray[Any, Any]):
    """A column of texts that knows them by number: of these there are few, of rows many.

    What is computed of it is an ordinary array.
    """

    texts: Sequence[str] = ()
    numbers: Column | None = None
    """Which of the texts each row has; None where that is not known."""

    @classmethod
    def of(cls, texts: Sequence[str], numbers: Column) -> TextColumn:
        """Return a column that has these of some texts."""
        view = np.array(texts, dtype=object)[numbers].view(cls)
        view.texts, view.numbers = texts, numbers
        return view


class Vocabulary:
    """The texts of a log, numbered in the order in which they were first seen."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """Return the number of ``text``."""
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return code

    def codes(self, column: Column) -> Column:
        """Return the numbers of a column of texts, as ``int32``."""
        if column.ndim == 0:
            return np.array(self.code(str(column)), dtype=np.int32)
        if isinstance(column, TextColumn) and column.numbers is not None:
            known = np.array([self.code(text) for text in column.texts], dtype=np.int32)
            return known[column.numbers]
        # A dict over the few distinct texts, found through identity-fast set() on the list.
        listed = column.tolist()
        table = {text: self.code(str(text)) for text in dict.fromkeys(listed)}
        return np.fromiter(map(table.__getitem__, listed), dtype=np.int32, count=len(listed))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All columns of ROW_COLUMNS: ``num_rows`` long; texts as codes of a :class:`Vocabulary`."""

    num_rows: int
    columns: dict[str, Column]

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]


def read_rows(template: Template, num_ranks: int, vocabulary: Vocabulary) -> Rows:
    """Return the template's rows; without any, one row per rank that spans it.

    Raises:
        InternalError: The template's columns differ in length or lack a required one.
    """
    arrays = {name: np.asanyarray(column) for name, column in template.make_rows().items()}
    lengths = {len(column) for column in arrays.values() if column.ndim}
    if not lengths or lengths == {0}:
        arrays = _whole_template(template, num_ranks)
        lengths = {num_ranks}
    missing = [name for name in _REQUIRED if name not in arrays]
    unknown = arrays.keys() - set(ROW_COLUMNS)
    if len(lengths) != 1 or missing or unknown:
        raise InternalError(
            f"rows of {template.name}: lengths {sorted(lengths)}, missing {missing}, "
            f"unknown {sorted(unknown)}"
        )
    (num_rows,) = lengths
    arrays.setdefault("busy_ps", arrays["end_ps"] - arrays["start_ps"])
    columns = {}
    for name in ROW_COLUMNS:
        column = arrays[name] if name in arrays else np.array(_DEFAULTS[name])
        if name in TEXT_COLUMNS:
            column = vocabulary.codes(column)
        else:
            dtype = np.int64 if name in WIDE_COLUMNS else np.int32
            column = column.astype(dtype, copy=False)
        columns[name] = np.broadcast_to(column, num_rows)
    return Rows(num_rows, columns)


def _whole_template(template: Template, num_ranks: int) -> dict[str, Column]:
    shares = np.zeros((2, num_ranks), dtype=np.int64)
    shares[0] = rank_shares(template.hbm_bytes, template.hbm_bytes_by_rank, num_ranks)
    shares[1] = rank_shares(template.flops, (), num_ranks)
    return {
        "engine": np.array(Engine.HOST.value),
        "kind": np.array(template.kind),
        "rank": np.arange(num_ranks),
        "start_ps": np.array(0),
        "end_ps": np.array(template.duration_ps),
        "bytes": shares[0],
        "flops": shares[1],
    }


def rank_shares(total: int, by_rank: tuple[int, ...], num_ranks: int) -> Column:
    """Return each rank's part of ``total``: ``by_rank``, or else equal parts that sum to it."""
    if by_rank:
        return np.array(by_rank, dtype=np.int64)
    number, rest = divmod(total, num_ranks)
    return number + (np.arange(num_ranks) < rest).astype(np.int64)


class RowReader:
    """Reads templates' rows, and keeps the ones used last: templates are read again and again."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self._rows: OrderedDict[Template, Rows] = OrderedDict()
        self._num_kept = 0

    def read(self, template: Template, num_ranks: int) -> Rows:
        """Return the rows of a template whose instances have ``num_ranks`` ranks."""
        rows = self._rows.get(template)
        if rows is not None:
            self._rows.move_to_end(template)
            return rows
        rows = read_rows(template, num_ranks, self.vocabulary)
        self._rows[template] = rows
        self._num_kept += rows.num_rows
        while self._num_kept > _CACHED_ROWS and len(self._rows) > 1:
            self._num_kept -= self._rows.popitem(last=False)[1].num_rows
        return rows
