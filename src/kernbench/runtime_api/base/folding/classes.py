"""Ranks that do the same are run once: one of each class runs, and stands for the others.

Ranks of a program differ by where they are in its groups. Where all ranks of a group do the same,
one of them is enough; in a pipeline each stage is a class of its own (ADR-0166).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api.base.folding.axes import RankAxis, axes_of, axis_of, shown
from kernbench.runtime_api.base.folding.timetable import CountedCalls, Timetable

if TYPE_CHECKING:
    from kernbench.collectives import Schedule
    from kernbench.links import Network
    from kernbench.op_log import Column, Template
    from kernbench.runtime_api.base.run import Run


class Arrived(Protocol):
    """A rank's part in a collective."""

    rank: int
    ready_ps: int


class MustSplitError(UsageError):
    """Ranks that were taken to do the same send to each other, so that they do not."""


class Folding:
    """Which rank stands for which.

    ``axes`` are those along which ranks differ. Of ranks that are at one place on all of them, the
    one with the other coordinates of rank ``base`` runs.
    """

    def __init__(self, num_ranks: int, axes: tuple[RankAxis, ...] = (), base: int = 0) -> None:
        self.num_ranks = num_ranks
        self.axes = axes
        self.base = base
        self.wanted: RankAxis | None = None
        """A further axis, without which the program cannot be folded."""
        self.sharing: set[str] = set()
        """Collectives of which some groups share links, and the latest counts for all."""
        self.unseen: set[str] = set()
        """Collectives of groups whose replicas are not known, which could share links."""
        self.levelled: dict[str, int] = {}
        """The most by which collectives held up ranks that end them before others, by name."""
        self.placements: Timetable | None = None
        """When collectives run with all ranks, where that is known."""
        self.why_not = ""
        """Why it is not known."""
        self.calls = CountedCalls()
        self.is_alike: bool | None = None
        """Whether other ranks that were run do what ran for them, in the same time; None where none
        was."""
        self.num_checked = 0
        """How many other ranks that was."""
        self.has_host_times = False
        """Whether the Python of hosts takes time."""
        self.once_ps: int | None = None
        """How long Python takes that libraries run once per process; None: not known."""
        self.differing = ""
        """Which other rank was seen not to do what the one does that runs for it."""
        self.running = tuple(sorted({self.representative(rank) for rank in range(num_ranks)}))
        """The ranks that run."""
        self._found_rivals: dict[object, tuple[tuple[int, ...], ...]] = {}
        self._logged: dict[Template, tuple[tuple[int, ...], Template]] = {}
        self._positions = lru_cache(maxsize=None)(self._find_positions)

    def begin(self, run: Run) -> None:
        """Let a run that has not begun run these ranks alone."""
        run.folding = self
        self.has_host_times = run.machine.spec.host is not None
        run.op_log.running = self.running
        run.remarks.append(self.remarks)

    def described(self) -> dict[str, Any]:
        """Return what it takes to make it again, by :meth:`of`."""
        axes = [(axis.stride, axis.size) for axis in self.axes]
        return {"num_ranks": self.num_ranks, "axes": axes, "base": self.base}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Folding:
        """Return the folding that :meth:`described` describes."""
        axes = tuple([RankAxis(*axis) for axis in described["axes"]])
        return cls(described["num_ranks"], axes, described["base"])

    def representative(self, rank: int) -> int:
        """Return the rank that runs for a rank."""
        base = self.base
        for axis in self.axes:
            base += (axis.position(rank) - axis.position(self.base)) * axis.stride
        return base

    def positions(self, ranks: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Return the positions in a group for which a rank that runs stands, without its own.

        Raises:
            UsageError: Somebody who stands for a rank of the group is not in it.
        """
        return self._positions(ranks, rank)

    def _find_positions(self, ranks: tuple[int, ...], rank: int) -> tuple[int, ...]:
        members = frozenset(ranks)
        for number in ranks:
            if self.representative(number) not in members:
                raise UsageError(
                    f"the program cannot be folded: rank {self.representative(number)} runs for "
                    f"rank {number}, but is not in its group of ranks {shown(ranks)}; "
                    "leave --fold out"
                )
        return tuple(
            position
            for position, item in enumerate(ranks)
            if item != rank and self.representative(item) == rank
        )

    def group_of(self, ranks: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
        """Return the group of ``rank`` that does what ``ranks``, one of whoever runs for it, does.

        None if that is not known: the group is no row of a mesh of all ranks.
        """
        if rank in ranks:
            return ranks
        axes = axes_of(ranks, self.num_ranks)
        if axes is None:
            return None
        first = rank - sum(axis.position(rank) * axis.stride for axis in axes)
        return tuple([rank - min(ranks) + first for rank in ranks])

    def check_pair(self, ranks: tuple[int, ...], rank: int, peer: int) -> None:
        """Refuse a send or a receive between ranks of a group that one rank runs for.

        Raises:
            MustSplitError: The group is an axis along which ranks have to differ; it is noted.
            UsageError: The group is none.
        """
        if self.representative(peer) == peer:
            return
        axis = axis_of(ranks, self.num_ranks)
        if axis is None or axis.size == self.num_ranks or axis in self.axes:
            raise UsageError(
                f"the program cannot be folded: rank {rank} sends to or receives from rank {peer} "
                f"in the group of ranks {shown(ranks)}, which is no row of a mesh of all "
                f"{self.num_ranks} ranks, so that nothing says which others do the same; pass the "
                "pipeline's own group, or leave --fold out"
            )
        self.wanted = axis
        raise MustSplitError(
            f"rank {rank} sends to or receives from rank {peer}, which does not run: each of ranks "
            f"{shown(ranks)} has to"
        )

    def unequal(self, ranks: tuple[int, ...], error: KernbenchError) -> KernbenchError:
        """Return what ends a collective whose ranks turn out to have unequal parts.

        That ranks which one runs for bring other parts is no mistake of the program's if the group
        is an axis along which they may differ. It is noted then.
        """
        axis = axis_of(ranks, self.num_ranks)
        stands_for_some = any(self.representative(rank) != rank for rank in ranks)
        if not stands_for_some or axis is None or axis.size == self.num_ranks:
            return error
        self.wanted = axis
        return MustSplitError(f"ranks {shown(ranks)} have unequal parts: each of them has to run")

    def level(
        self,
        network: Network,
        schedule: Schedule,
        protocol: str,
        placed: tuple[tuple[int, ...], tuple[int, ...]],
        ends_ps: tuple[int, ...],
        works: Sequence[Arrived],
    ) -> tuple[int, ...]:
        """Return when the ranks of a collective go on, each with those that it stands for.

        That is when the last of them has ended, in the collective or in one of other groups that do
        the same at the same time, which take their links, too. ``placed`` are the group's ranks and
        their SIPs.
        """
        ranks, sips = placed
        starts_ps, alone_ps = tuple([work.ready_ps for work in works]), ends_ps
        for other in self._rivals(network, schedule, protocol, ranks, sips):
            on = tuple([sip - ranks[0] + other[0] for sip in sips])
            rival = network.run(schedule, on, starts_ps, protocol)
            ends_ps = tuple(map(max, ends_ps, rival.ends_ps))
        latest: dict[Arrived, int] = {}
        for work, end_ps in zip(works, ends_ps, strict=True):
            latest[work] = max(end_ps, latest.get(work, 0))
        held_ps = max(latest[work] - end_ps for work, end_ps in zip(works, alone_ps, strict=True))
        if held_ps:
            self.levelled[schedule.op] = self.levelled.get(schedule.op, 0) + held_ps
        return tuple([latest[work] for work in works])

    def _rivals(
        self,
        network: Network,
        schedule: Schedule,
        protocol: str,
        ranks: tuple[int, ...],
        sips: tuple[int, ...],
    ) -> tuple[tuple[int, ...], ...]:
        """Return the replicas of a group that share links with it."""
        key = (schedule.op, schedule.algorithm, protocol, ranks)
        rivals = self._found_rivals.get(key)
        if rivals is None:
            replicas = self.replicas(ranks)
            if replicas is None:
                self.unseen.add(schedule.op)
                replicas = ()
            taken = network.links_of(schedule, sips, protocol) if replicas else frozenset()
            rivals = self._found_rivals[key] = tuple(
                other
                for other in replicas
                if not taken.isdisjoint(
                    network.links_of(
                        schedule, tuple([sip - ranks[0] + other[0] for sip in sips]), protocol
                    )
                )
            )
            if rivals:
                self.sharing.add(schedule.op)
        return rivals

    def replicas(self, ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
        """Return the other groups that do what a group does; None if they are not known."""
        axes = axes_of(ranks, self.num_ranks)
        if axes is None:
            return None
        if self.num_ranks == len(ranks):
            return ()
        # Along their own axes groups are whole; along those on which ranks differ, they differ.
        lowest, others = min(ranks), set(self.axes) - set(axes)
        return tuple(
            tuple(first - lowest + rank for rank in ranks)
            for first in range(self.num_ranks)
            if first != lowest
            and all(axis.position(first) == 0 for axis in axes)
            and all(axis.position(first) == axis.position(lowest) for axis in others)
        )

    def logged(self, template: Template, positions: tuple[int, ...]) -> Template:
        """Return the part of a collective's template that is of the ranks that run."""
        known = self._logged.get(template)
        if known is None or known[0] != positions:
            known = self._logged[template] = positions, _part_of(template, positions)
        return known[1]

    @property
    def is_exact(self) -> bool:
        """Whether ranks that ran took as long as in a run of all."""
        if self.placements is not None:
            return not self.placements.differing
        return not self.levelled and not self.unseen

    def remarks(self) -> list[str]:
        """Return what a report says about it."""
        running = shown(self.running)
        lines = [
            f"folded: {len(self.running)} of {self.num_ranks} ranks ran ({running}); each of the "
            "others is taken to do what one of them does"
        ]
        if self.differing:
            return [*lines, f"folded: {self.differing}; run it without --fold"]
        if self.is_alike is False:
            return lines
        return lines + [f"folded: {time}" for time in self._of_times()]

    def _of_times(self) -> list[str]:
        """Return how its times are to those of a run of all ranks, if others do what is taken."""
        if self.is_exact:
            return [self._if_checked(f"they took as long as with all ranks, {self._but_for()}")]
        lines = []
        if self.placements is not None:
            # Those that came later were held up until the last, or not: the rest is a mixture.
            return [
                f"{self.placements.differing} came at another time than with all ranks, as the "
                "program does other things at other times: from then on nothing bounds how far "
                "times are from those of all ranks"
            ]
        lines += [
            f"groups that {name} at one time share links; the latest of them counts"
            for name in sorted(self.sharing)
        ]
        lines += [
            f"other groups that {name} at the same time are not known, and take no links: with all "
            "ranks the run may be longer"
            for name in sorted(self.unseen)
        ]
        if self.levelled:
            most = _at_most(sum(self.levelled.values()))
            lines.append(
                f"ranks end {', '.join(self.levelled)} at different times, and go on with the "
                f"last: with all ranks the run is shorter, by up to {most}"
            )
        if self.why_not:
            lines.append(f"what others do was not done again, as {self.why_not}")
        if self.has_host_times and self.once_ps != 0:
            lines.append(f"all of that {self._but_for()}")
        return [f"what folding leaves out: {'; '.join(lines)}"] if lines else []

    def _if_checked(self, text: str) -> str:
        others = self.num_ranks - len(self.running)
        if self.is_alike is None:
            return f"if they do, {text}; --fold=check runs some of them to see"
        if self.num_checked == others:
            return text
        return (
            f"if the {others - self.num_checked:,} that were not checked do as well, {text}; "
            f"--fold-check {others} checks them all"
        )

    def _but_for(self) -> str:
        """Return what times have that those of all ranks in one process have not."""
        if not self.has_host_times or self.once_ps == 0:
            return "to the picosecond"
        most = "by a time that is not known"
        if self.once_ps is not None:
            most = f"by at most {_at_most(self.once_ps)}"
        return (
            "but for Python that libraries run once per process: here each rank pays for it, with "
            f"all ranks in one process the first, and times differ {most}"
        )


def _at_most(time_ps: int) -> str:
    """Return a time that is not shown shorter than it is."""
    from kernbench.report import format_ns

    return format_ns(time_ps * 1.005 / 1000)


def _part_of(template: Template, positions: tuple[int, ...]) -> Template:
    """Return the template of some of its ranks, numbered anew."""
    shares = template.hbm_bytes_by_rank
    num_ranks = len(shares)

    def make_rows() -> dict[str, Column]:
        rows = template.make_rows()
        numbers = np.full(num_ranks + 1, -1, dtype=np.int64)
        numbers[list(positions)] = range(len(positions))
        kept = numbers[rows["rank"]] >= 0
        arrays = {name: row[kept] if row.ndim else row for name, row in rows.items()}
        for name in ("rank", "peer"):
            # The last number is that of nobody: -1 stays it.
            arrays[name] = numbers[arrays[name]]
        return arrays

    kept_shares = tuple(shares[position] for position in positions)
    return replace(
        template,
        make_rows=make_rows,
        hbm_bytes=sum(kept_shares),
        hbm_bytes_by_rank=kept_shares,
        flops=template.flops * len(positions) // num_ranks,
        energy_pj={
            part: pj * len(positions) // num_ranks for part, pj in template.energy_pj.items()
        },
    )
