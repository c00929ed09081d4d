"""Columns of rows, as readers of a log get them."""

from __future__ import annotations

import numpy as np

from kernbench.op_log import TextColumn
from kernbench.op_log.rows import Vocabulary


def test_texts_that_are_known_by_number_are_read_as_other_texts_are() -> None:
    numbers = np.array([2, 0, 2, 2])
    known = TextColumn.of(("a", "b", "c"), numbers)
    assert known.tolist() == ["c", "a", "c", "c"]
    vocabulary = Vocabulary()
    for column in (known, known[1:], known[known == "c"], np.asarray(known)):
        texts = [vocabulary.texts[code] for code in vocabulary.codes(column)]
        assert texts == column.tolist()
