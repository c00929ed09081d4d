"""What all results have in common: a text, the same in a notebook, and a table."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernbench.errors import UsageError

if TYPE_CHECKING:
    import pandas
    from rich.console import Console

StrPath = str | os.PathLike[str]

_COLUMNS = 110


class Printed:
    """A result that prints itself as its command does."""

    def print_to(self, console: Console) -> None:
        """Print what the command prints."""
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, object]]:
        """Return the table of the result, a mapping from columns to values for each row."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return :meth:`rows` as a DataFrame.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(list(self.rows()))

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        self.print_to(Console(file=text, width=_COLUMNS, highlight=False))
        return text.getvalue().strip("\n")

    def _repr_html_(self) -> str:
        from kernbench.report import as_html

        return as_html(self.print_to)
