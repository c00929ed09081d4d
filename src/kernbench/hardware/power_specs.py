"""What a device draws: picojoules of its work, watts of its clocks, and what limits them."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from kernbench.hardware.spec_base import NotNegative, Positive, Share, Spec


class MathEnergies(Spec):
    """Picojoules of each class of vector operation, per element."""

    simple: NotNegative
    """Add, multiply, compare, select and the like."""
    divide: NotNegative
    """Division and remainder."""
    transcendental: NotNegative
    """Exponentials, logarithms, roots, trigonometry."""
    convert: NotNegative
    """From one dtype to another."""
    reduce: NotNegative
    """Operands of sums, maxima and scans."""


class PowerSpec(Spec):
    """What a SIP draws, at the clock of the file.

    At a lower clock the voltage falls too: energies of what runs on that clock (the engines, TCM,
    the cache) fall with it, and ``active_w`` with its square. Those of HBM and of links stay.
    """

    board_w: Positive
    """What the board may draw by itself; ``sustained`` says what that costs."""
    cap_w: Positive | None = None
    """A lower limit: kernels that would draw more run at a lower clock. Left out: none."""
    clock_share: Share = 1  # type: ignore[assignment]  # an int is as exact
    """A clock that is locked, relative to the file's."""
    idle_w: NotNegative
    """While nothing runs, and below all that does."""
    active_w: NotNegative
    """On top of that while kernels or collectives run, whatever they do: clocks, schedulers."""
    gemm_pj_per_flop: dict[str, NotNegative]
    """By operand dtype, as ``sip.pe.gemm.flops_per_clock``; a multiply-add is two."""
    math_pj_per_element: MathEnergies
    """Of the vector engines, their instructions and registers included."""
    tcm_pj_per_byte: NotNegative
    """Into TCM and out of it, of what crosses the PE's port."""
    cache_pj_per_byte: NotNegative
    """Between the shared cache and the PEs' ports; without a cache, between HBM and the ports."""
    hbm_pj_per_byte: NotNegative
    """Between HBM and the cache: DRAM, its interface and its controller."""
    link_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """On each link inside a node that a byte takes, both ends together."""
    network_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """On each link between nodes, as far as the device pays for it."""
    host_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """Between the host and the SIP."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.cap_w is not None and not self.idle_w < self.cap_w:
            raise ValueError(
                f"cap_w must be above idle_w, which no clock changes, but got "
                f"{float(self.cap_w):g} and {float(self.idle_w):g} W"
            )
        if not self.idle_w < self.board_w:
            raise ValueError(
                f"idle_w must be below board_w, but got {float(self.idle_w):g} and "
                f"{float(self.board_w):g} W"
            )
        return self

    @property
    def is_limited(self) -> bool:
        """Whether a cap or a locked clock may slow kernels down."""
        return self.cap_w is not None or self.clock_share < 1
