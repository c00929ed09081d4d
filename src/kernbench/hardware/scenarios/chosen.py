"""Which devices and links of a machine a scenario is about, by its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, TypeVar

from kernbench.errors import MachineError
from kernbench.hardware.scenarios.specs import ScenarioSpec

if TYPE_CHECKING:
    from kernbench.hardware.machine import Link
    from kernbench.hardware.specs import SipSpec

T = TypeVar("T")
Wire = tuple[int, int]
"""The SIPs, switches or networks at its ends, the lower number first."""


def drawing(scenario: ScenarioSpec, *what: object) -> Random:
    """Return the random numbers of one part of a scenario: others do not move them.

    >>> scenario = ScenarioSpec(seed=7)
    >>> drawing(scenario, "host", 1).random() == drawing(scenario, "host", 1).random()
    True
    """
    return Random("/".join(map(str, (scenario.seed, *what))))


def slow_sips(scenario: ScenarioSpec, num_sips: int, origin: str) -> tuple[int, ...]:
    """Return the numbers of the SIPs that are slow, in order.

    Raises:
        MachineError: The machine has fewer.
    """
    slow = scenario.slow_devices
    beyond = [sip for sip in slow.sips if sip >= num_sips]
    if beyond:
        raise MachineError(
            f"{origin}: scenario.slow_devices.sips names SIP {beyond[0]}, but there are "
            f"{num_sips} (0 to {num_sips - 1})"
        )
    if slow.sips:
        return tuple(sorted(slow.sips))
    return _sample(scenario, "slow_devices", slow.count, range(num_sips), "SIPs", origin)


def slowed(scenario: ScenarioSpec, sip: SipSpec) -> SipSpec:
    """Return what a slow SIP is like."""
    slow = scenario.slow_devices
    cube = sip.cube.model_copy(
        update={"hbm_bandwidth_gbps": sip.cube.hbm_bandwidth_gbps * slow.hbm}
    )
    return sip.model_copy(update={"clock_ghz": sip.clock_ghz * slow.clock, "cube": cube})


def slow_wires(
    scenario: ScenarioSpec, ends: Sequence[Wire], first_outer_link: int, origin: str
) -> tuple[Wire, ...]:
    """Return the wires that are slow; ``ends`` are those of all links, in their order.

    Raises:
        MachineError: There are fewer.
    """
    slow = scenario.slow_links
    if not slow.count:
        return ()
    of_nodes = slow.between == "nodes"
    links = ends[first_outer_link:] if of_nodes else ends[:first_outer_link]
    wires = sorted({wire(*link) for link in links})
    what = f"wires between {slow.between}"
    return _sample(scenario, "slow_links", slow.count, wires, what, origin)


def wire(src: int, dst: int) -> Wire:
    """Return the wire of a link from one end to another."""
    return (src, dst) if src < dst else (dst, src)


def with_slow_links(
    scenario: ScenarioSpec, links: tuple[Link, ...], slow: Sequence[Wire]
) -> tuple[Link, ...]:
    """Return links, those of some wires slow."""
    wires = frozenset(slow)
    share = scenario.slow_links.bandwidth
    return tuple(
        replace(link, bandwidth_gbps=link.bandwidth_gbps * share)
        if wire(link.src_sip, link.dst_sip) in wires
        else link
        for link in links
    )


def flapping_wires(
    scenario: ScenarioSpec, ends: Sequence[Wire], first_outer_link: int, origin: str
) -> tuple[Wire, ...]:
    """Return the wires between nodes that go down now and then.

    Raises:
        MachineError: There are fewer.
    """
    wires = sorted({wire(*end) for end in ends[first_outer_link:]})
    count = scenario.flapping.count
    return _sample(scenario, "flapping", count, wires, "wires between nodes", origin)


def _sample(
    scenario: ScenarioSpec, key: str, count: int, among: Sequence[T], what: str, origin: str
) -> tuple[T, ...]:
    if count > len(among):
        raise MachineError(
            f"{origin}: scenario.{key}.count is {count}, but there are {len(among)} {what}"
        )
    places = sorted(drawing(scenario, key).sample(range(len(among)), count))
    return tuple([among[place] for place in places])
