"""What a machine file says about noise and faults."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernbench.hardware.spec_base import NotNegative, Positive, Share, Spec

Number = Annotated[int, Field(strict=True, ge=0)]
Ratio = Annotated[Positive, Field(ge=1)]


class SlowDevicesSpec(Spec):
    """Devices that are slower than the others for the whole run, as by heat."""

    count: Number = 0
    """How many, chosen by the seed."""
    sips: tuple[Number, ...] = ()
    """Which ones, in place of ``count``."""
    clock: Share = Fraction(4, 5)
    """Share of the clock of their engines."""
    hbm: Share = Fraction(1)
    """Share of their HBM bandwidth."""

    @model_validator(mode="after")
    def _are_named_or_counted(self) -> Self:
        if self.count and self.sips:
            raise ValueError(
                f"count is {self.count} and sips are {list(self.sips)}; give one of them"
            )
        if len(set(self.sips)) < len(self.sips):
            raise ValueError(f"sips names a SIP twice: {list(self.sips)}")
        return self


class SlowLinksSpec(Spec):
    """Wires that are slower than the others, in both directions, as by a bad cable.

    Libraries choose algorithms as if they were not.
    """

    count: Number = 0
    """How many, chosen by the seed."""
    between: Literal["sips", "nodes"] = "sips"
    """Which ones may be: ``sips`` of a node, or links between ``nodes``."""
    bandwidth: Share = Fraction(1, 2)
    """Share of their bandwidth."""


class HostJitterSpec(Spec):
    """Interruptions of the CPUs of hosts: daemons, timers, other programs.

    Each rank's CPU is taken away at random times, which are a Poisson process, for the same time
    each; what falls into a wait costs nothing. Source: K. Ferreira, P. Bridges, R. Brightwell,
    "Characterizing application sensitivity to OS interference using kernel-level noise injection",
    SC 2008, which injects 10 per second of 2,500 us, 100 of 250 us or 1,000 of 25 us: 2.5 % of a
    CPU each.
    """

    per_s: NotNegative = Fraction(0)
    """Interruptions of each rank's host per second, on average."""
    us: Positive = Fraction(25)
    """How long each lasts."""

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.per_s * self.us >= 10**6:
            raise ValueError(
                f"per_s is {float(self.per_s):g} and us is {float(self.us):g}: interruptions would "
                "take all of the host's time"
            )
        return self


class CollectiveJitterSpec(Spec):
    """Other traffic on the network: each collective takes a random factor of its time.

    The factor has a log-normal distribution with the median 1, so that the modeled time is the
    median. Tails are given as E. Warraich et al., "OptiReduce: Resilient and Tail-Optimal AllReduce
    for Distributed Deep Learning in the Cloud", NSDI 2025, gives those of clouds: the time of the
    slowest of a hundred over the median.
    """

    p99_over_p50: Ratio = Fraction(1)
    """99th percentile over the median; 1 is no jitter."""


class FlappingSpec(Spec):
    """Links between nodes that go down and come back.

    Transfers wait for them, as NCCL's do that are tried again.
    """

    count: Number = 0
    """How many wires between nodes do so, chosen by the seed."""
    up_s: Positive = Fraction(60)
    """How long a link is up, on average; the times have an exponential distribution."""
    down_s: Positive = Fraction(2)
    """How long it is down."""


class DeathSpec(Spec):
    """A rank whose process ends without a word, as by a fault of its device."""

    rank: Number
    """Which one."""
    at_s: NotNegative
    """When, in simulated time since the run began."""


class ScenarioSpec(Spec):
    """Noise and faults.

    All that is drawn follows from ``seed``: the same scenario gives the same run, to the last byte.
    """

    seed: Number = 0
    """Seed of all that is drawn."""
    slow_devices: SlowDevicesSpec = SlowDevicesSpec()
    """Devices that are slower than the others."""
    slow_links: SlowLinksSpec = SlowLinksSpec()
    """Links that are slower than the others."""
    host_jitter: HostJitterSpec = HostJitterSpec()
    """Interruptions of hosts."""
    collective_jitter: CollectiveJitterSpec = CollectiveJitterSpec()
    """Collectives that take longer or shorter than modeled."""
    flapping: FlappingSpec = FlappingSpec()
    """Links that are down for a while."""
    deaths: tuple[DeathSpec, ...] = ()
    """Ranks that end by a fault."""
    restart_s: NotNegative = Fraction(10)
    """From the failure of a rank to the first line of the programs that ``--max-restarts`` starts
    again: their agent notices (torchrun looks ten times a second), ends the others, meets the other
    agents, and Python starts and imports. Assumed."""

    @property
    def differs_by_rank(self) -> bool:
        """Whether some ranks have another time than others that do the same."""
        return (
            bool(self.slow_devices.count or self.slow_devices.sips)
            or bool(self.slow_links.count or self.flapping.count or self.deaths)
            or self.host_jitter.per_s > 0
            or self.collective_jitter.p99_over_p50 > 1
        )
