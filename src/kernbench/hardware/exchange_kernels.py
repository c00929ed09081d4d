"""Constants of kernels that exchange the rows of experts: a file per GPU architecture."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib import resources

from pydantic import Field

from kernbench.hardware.kernel_constants import read_constants
from kernbench.hardware.spec_base import Count, NotNegative, Positive, Share, Spec


class ExchangeKernel(Spec):
    """What one kernel costs beside the bytes on links: its constants on one architecture."""

    launch_us: NotNegative
    """From the call to the first row on its way, with the counts that ranks exchange before."""
    doubling_us: NotNegative = Fraction(0)
    """The time added for every doubling of the nodes, or of the ranks of one node."""
    expert_us: NotNegative = Fraction(0)
    """The time added for every expert."""
    token_us: NotNegative = Fraction(0)
    """The time added for every token: what follows the exchange row by row, such as its sum."""
    least_token_us: NotNegative = Fraction(0)
    """What a token takes at least, however few bytes it has."""
    pe_token_us: NotNegative = Fraction(0)
    """A PE's time for a token, beside its rows."""
    pe_row_us: NotNegative = Fraction(0)
    """A PE's time for a row, beside its bytes."""
    pe_gbps: Positive | None = None
    """The rate at which a PE copies rows; left out where PEs are never slower than links."""
    link_share: Share = Fraction(1)
    """The share of a rank's links that rows of all PEs reach."""
    crowding: NotNegative = Fraction(0)
    """How much longer bytes take for every doubling of the ranks above 8."""
    network_share: Share = Fraction(1)
    """The same share of a network interface."""
    crowded_nodes: Count | None = None
    """How many nodes it takes for interfaces to reach ``crowded_share`` of that."""
    crowded_share: Share = Fraction(1)
    calm_us: NotNegative = Fraction(0)
    """What the network's queues take in before, as time at that rate."""
    filling_tokens: NotNegative = Fraction(0)
    """Tokens that a channel, which two PEs serve, has before it hands them on. 0: each row goes
    straight to its rank; else over the interface of the sender's place, and on from there."""
    each_choice: bool = False
    """Whether each choice of a token is sent, not one row to each rank that it meets."""
    source: str
    rows: int = Field(ge=0)
    """How many measured rows these were fitted to."""


class ExchangeKernels(Spec):
    """One file."""

    kernels: dict[str, ExchangeKernel]


@cache
def load_exchanges(architecture: str | None) -> Mapping[str, ExchangeKernel]:
    """Return the kernels of an architecture by name; none where nothing is known of any.

    Raises:
        MachineError: The file has an unknown key, or an impossible value.
    """
    file = resources.files("kernbench.hardware") / "exchanges" / f"{architecture}.yaml"
    if not file.is_file():
        return {}
    return read_constants(ExchangeKernels, file, f"exchanges/{architecture}.yaml").kernels
