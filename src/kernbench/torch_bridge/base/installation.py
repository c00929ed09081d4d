"""A table of what a run installs in PyTorch and Python; each order that matters has its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.torch_bridge.base.patches import Patches


@dataclass(frozen=True, slots=True)
class Installation:
    """One row of a table of what is installed."""

    name: str
    gives: str
    """What programs get from it."""
    install: Callable[[Patches], None]
    after: Mapping[str, str] = field(default_factory=dict)
    """Names of rows that must come before, each with the reason.

    Rows without one may come in any order.
    """


def install_all(patches: Patches, table: Sequence[Installation]) -> None:
    """Install the rows of a table, the first one first."""
    installed: set[str] = set()
    for installation in table:
        missing = installation.after.keys() - installed
        assert not missing, f"{installation.name} is listed before {', '.join(sorted(missing))}"
        assert installation.name not in installed, f"{installation.name} is listed twice"
        installation.install(patches)
        installed.add(installation.name)
