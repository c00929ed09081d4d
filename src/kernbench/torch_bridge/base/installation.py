"""What is installed in PyTorch and Python for the time of a run, in an order that has reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.torch_bridge.base.patches import Patches


@dataclass(frozen=True, slots=True)
class Installation:
    """One row of a table of what is installed."""

    name: str
    gives: str
    """What programs have by it."""
    install: Callable[[Patches], None]
    after: Mapping[str, str] = field(default_factory=dict)
    """Names of rows that must come before, each with the reason.

    Rows that no reason orders may come in any order.
    """


def install_all(patches: Patches, table: Sequence[Installation]) -> None:
    """Install the rows of a table, the first one first."""
    installed: set[str] = set()
    for each in table:
        missing = each.after.keys() - installed
        assert not missing, f"{each.name} comes before {', '.join(sorted(missing))}"
        assert each.name not in installed, f"{each.name} is there twice"
        each.install(patches)
        installed.add(each.name)
