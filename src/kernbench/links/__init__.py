"""Links in virtual time: collectives, and the transfers that kernels make."""

from kernbench.links.network import (
    Network,
    Passage,
    Transferred,
)
from kernbench.links.selection import (
    Asked,
    Choice,
    Selector,
)

__all__ = [
    "Asked",
    "Choice",
    "Network",
    "Passage",
    "Selector",
    "Transferred",
]
