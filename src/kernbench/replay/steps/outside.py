"""Reads outside of a tensor that a run permits: they give zeros, and each line warns once."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from kernbench.commands import SourceLine
from kernbench.errors import OutOfBoundsWarning


class OutsideReads:
    """The lines of a run's kernels that have read outside of a tensor so far (ADR-0108)."""

    def __init__(self) -> None:
        self._lines: set[SourceLine] = set()

    def warn(self, line: SourceLine, say: Callable[[], str]) -> None:
        """Warn of a read by a line, unless it was warned of before; ``say`` returns the text."""
        if line in self._lines:
            return
        self._lines.add(line)
        text = f"{say()}; it reads zeros there (said once per line)"
        # The warning's location is the kernel's line.
        warnings.warn_explicit(text, OutOfBoundsWarning, line.file or "<kernel>", line.line)
