"""How evaluation says that a group of programs must be evaluated in another way."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from kernbench.kernel_ir.text.ir import Op


class SplitPrograms(Exception):  # noqa: N818 - a signal to the driver, not an error
    """Programs go different ways: ``labels`` says which, one per program of the group.

    ``may_share``: loops that the programs of a part go around differently often may be shared.
    """

    def __init__(self, labels: npt.NDArray[Any], may_share: bool = False) -> None:
        super().__init__(labels)
        self.labels = labels
        self.may_share = may_share


class TripsDiffer(SplitPrograms):
    """Programs go around a loop differently often: ``labels`` are their trip counts."""


class UnrollLoops(Exception):  # noqa: N818 - as above
    """Iterations of these loops go different ways."""

    def __init__(self, loops: frozenset[Op]) -> None:
        super().__init__(loops)
        self.loops = loops
