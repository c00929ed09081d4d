"""What is read from tables by indices that are data: never more than the table.

See docs/model/cache.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kernbench.commands import Atomic, DmaRead, DmaWrite, KernelTrace, access_of
from kernbench.kernel_time.costs.bursts import TouchedBytes
from kernbench.kernel_time.costs.shared_cache import stay_for_launch
from kernbench.kernel_time.program.origins import is_loaded
from kernbench.kernel_time.program.timed_plan import CommandSite

Tables = tuple[tuple[int, int], ...]
"""(parameter index, bytes) of the tensors that a kernel goes to by loaded indices."""


def gathered_params(trace: KernelTrace) -> tuple[int, ...]:
    """Return the parameters, rising, whose tensors' sizes the time depends on."""
    commands = {
        access_of(command).param
        for command in trace.commands()
        if isinstance(command, DmaRead | DmaWrite | Atomic)
        and access_of(command).gather is not None
        and access_of(command).param >= 0
    }
    return tuple(sorted(commands))


def capped(
    touched: tuple[TouchedBytes, ...], size_bytes: int, burst_bytes: int
) -> tuple[TouchedBytes, ...]:
    """Return what lanes of one table touch, capped at the bursts of the whole table."""
    whole = -(-size_bytes // burst_bytes) * burst_bytes
    return tuple(
        replace(
            touched_bytes, burst_bytes=whole, run_bytes=max(touched_bytes.run_bytes, size_bytes)
        )
        if touched_bytes.burst_bytes > whole
        else touched_bytes
        for touched_bytes in touched
    )


@dataclass(frozen=True, slots=True, eq=False)
class Lookups:
    """The sites of a group that go to tables of known size by loaded indices."""

    sizes: Mapping[int, int]
    """The bytes of each site's table."""
    parts: Mapping[int, int]
    """For each site, how many sites go to the same table."""

    @staticmethod
    def of(sites: Iterable[CommandSite], tables: Mapping[int, int]) -> Lookups:
        """Return those of a group; tables that only stores go to are left out."""
        params = {
            site.index: access_of(site.command).param
            for site in sites
            if isinstance(site.command, DmaRead | Atomic)
            and site.gather is not None
            and access_of(site.command).param in tables
            and is_loaded(site.gather)
        }
        together = list(params.values())
        return Lookups(
            {site: tables[param] for site, param in params.items()},
            {site: together.count(param) for site, param in params.items()},
        )

    def shares(
        self, moved: Mapping[int, int], programs: Fraction, room: int
    ) -> tuple[dict[int, Fraction], int]:
        """Return which share of a site's bytes comes from HBM, and the room that is left.

        ``moved`` are the bytes of all programs of the group by site, which are that part of the
        launch's ``programs``. A table that stays in the cache, of which there is so much ``room``,
        is read once.
        """
        once = {site: size * programs / self.parts[site] for site, size in self.sizes.items()}
        stay, room = stay_for_launch(
            room,
            [size if once[site] < moved[site] else None for site, size in self.sizes.items()],
            [size // self.parts[site] for site, size in self.sizes.items()],
        )
        result = zip(self.sizes, stay, strict=True)
        return {site: once[site] / moved[site] for site, stays in result if stays}, room
