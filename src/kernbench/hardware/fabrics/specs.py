"""What a machine file says about the switches between nodes."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernbench.hardware.spec_base import Count, NotNegative, Spec


class LeavesSpec(Spec):
    """The switches that network interfaces lead to, and links between those, which all share."""

    nodes: Count
    """Nodes in a row that the same switches serve; the last ones may be fewer."""
    ports: Literal["node", "rail"] = "node"
    """Which interfaces of those nodes one switch has: all of them, or those of one place
    (rail-optimised), so that there are as many switches as interfaces of a node."""
    oversubscription: Annotated[Fraction, Field(ge=1)] = Fraction(1)
    """Bandwidth of a switch's interfaces over that of its links to other switches."""
    topology: Literal["spine", "dragonfly"] = "spine"
    """``spine``: links to switches above, which never block. ``dragonfly``: links to every other
    switch, each with an equal part of the bandwidth."""
    routing: Literal["adaptive", "static"] = "adaptive"
    """``adaptive``: what leaves a switch is spread over all its links. ``static``: the interface it
    goes to decides which one it takes. A dragonfly has only one."""
    uplinks: Count | None = None
    """Links of a switch to the spine, for static routing; as many as its interfaces when
    missing."""
    latency_ns: NotNegative = Fraction(0)
    """Latency of one such link."""

    @model_validator(mode="after")
    def _routing_has_links_to_choose(self) -> Self:
        if self.uplinks is not None and self.routing != "static":
            raise ValueError(
                f"uplinks is {self.uplinks}, but routing {self.routing} uses all links as one; "
                "leave it out, or take routing static"
            )
        if self.topology == "dragonfly" and self.routing == "static":
            raise ValueError(
                "routing is static, but a dragonfly has one link between two switches; leave it out"
            )
        return self
