"""The energy of a run: by rank, by kernel, by what it goes to, and over time (ADR-0160)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from kernbench.commands import distinct_values
from kernbench.hardware import Machine, PowerSpec
from kernbench.op_log.columns import Spans, build_spans
from kernbench.op_log.energy import ON_CLOCK, Energy
from kernbench.op_log.log import Column, OpLog
from kernbench.op_log.steps import Window

WAITING = "(in collectives)"
"""What devices take while they are in collectives, beside the bytes that move."""
IDLE = "idle"
"""What devices take from the start of a run to its end, whatever they do."""
_PJ_PER_J = 10**12


class RankEnergy(TypedDict):
    """What the device of one rank takes."""

    rank: int
    energy_j: float
    average_w: float
    """The average over the whole run."""
    peak_w: float
    """The most that it draws at a time."""


class UseEnergy(TypedDict):
    """What all launches of a kernel, or all collectives or copies of a name, take."""

    name: str
    kind: str
    """The kind of command in the op log: ``kernel``, ``collective``, ``copy`` or ``fill``."""
    count: int
    energy_j: float
    """The energy beside the idle device's."""
    parts_j: dict[str, float]
    """The same by what it goes to."""
    average_w: float
    """While it runs, the idle device included, on one SIP."""


class EnergyReport(TypedDict):
    """What the devices of a run take. Of hosts, switches and cooling nothing is known."""

    devices: int
    """One for each rank, those of a folded run that did not run included."""
    energy_j: float
    """Energy of all devices: what each use takes, and the idle devices."""
    average_w: float
    """Average power of one device, over the whole run."""
    idle_j: float
    held_j: float
    """What commands side by side would take more without the devices' limits."""
    parts_j: dict[str, float]
    """All of it by what it goes to, ``idle`` included."""
    per_rank: list[RankEnergy]
    uses: list[UseEnergy]


@dataclass(frozen=True, slots=True)
class _EnergyUse:
    """What one rank's commands of a name take, in picojoules by part."""

    rank: int
    kind: str
    name: str
    count: int
    time_ps: int
    parts_pj: Mapping[str, int]


def energy_of(
    log: OpLog,
    machine: Machine,
    ranks: int,
    spans: Spans | None = None,
    within: Window | None = None,
) -> EnergyReport | None:
    """Return what the devices of a run take, None for a machine that says nothing of energy.

    Each command's energy is counted once; a device that only takes part in a collective draws its
    ``active_w`` and ``standby_w``, too. Idle devices count from 0 to the end of the log. With a
    window, what they take in it: of a command that it cuts, in proportion to time.
    """
    spans = build_spans(log) if spans is None else spans
    powers = _powers(spans, machine, ranks)
    if powers is None:
        return None
    end_ps = log.end_ps
    window = Window({rank: [(0, end_ps)] for rank in range(ranks)}) if within is None else within
    # Of a folded run, those that did not run take as long as the first one that did.
    lengths_ps = [
        window.length_ps(index if index in window else window.ranks[0]) for index in range(ranks)
    ]
    idle_pj = [round(power.idle_w * ps) for power, ps in zip(powers, lengths_ps, strict=True)]
    entries = _by_rank(spans, ranks)
    waits = _exposed_of(spans, entries)
    asked = _energies(spans)
    drawn = list(_drawn(spans, asked, entries, waits, powers, end_ps))
    energies = _held(spans, asked, entries, drawn)
    taken = asked
    if within is not None:
        inside = _inside(spans, entries, within)
        energies, taken = (
            {part: inside(pj) for part, pj in energy.items()} for energy in (energies, asked)
        )
    held = sum(int((taken[part] - energies[part]).sum()) for part in asked)
    uses = [*_uses(spans, energies, entries, within), *_waiting(waits, powers, window)]
    by_rank = list(idle_pj)
    parts: defaultdict[str, int] = defaultdict(int, {IDLE: sum(idle_pj)})
    for use in uses:
        for part, pj in use.parts_pj.items():
            by_rank[use.rank] += pj
            parts[part] += pj
    total = sum(by_rank)
    peaks = [
        float(item.watts[:-1][np.diff(window.until(rank, item.times_ps)) > 0].max(initial=0))
        for rank, item in enumerate(drawn)
    ]
    energy: EnergyReport = {
        "devices": ranks,
        "energy_j": total / _PJ_PER_J,
        "average_w": total / sum(lengths_ps) if any(lengths_ps) else 0.0,
        "idle_j": sum(idle_pj) / _PJ_PER_J,
        "held_j": held / _PJ_PER_J,
        "parts_j": {part: pj / _PJ_PER_J for part, pj in parts.items() if pj},
        "per_rank": [
            {
                "rank": rank,
                "energy_j": pj / _PJ_PER_J,
                "average_w": pj / ps if ps else 0.0,
                "peak_w": peaks[rank],
            }
            for rank, (pj, ps) in enumerate(zip(by_rank, lengths_ps, strict=True))
        ],
        "uses": _by_name(uses, powers),
    }
    return energy if log.running is None else _of_all(energy, log.running)


def _of_all(energy: EnergyReport, running: Sequence[int]) -> EnergyReport:
    """Return the energy of all ranks, each of which does what one of those that ran does."""
    known = energy["per_rank"]
    times = len(known) // len(running)
    parts_j = {
        part: energy_j if part == IDLE else energy_j * times
        for part, energy_j in energy["parts_j"].items()
    }
    total = sum(parts_j.values())
    own = energy["energy_j"]
    return {
        "devices": energy["devices"],
        "energy_j": total,
        "average_w": energy["average_w"] * (total / own) if own else 0.0,
        "idle_j": energy["idle_j"],
        "held_j": energy["held_j"] * times,
        "parts_j": parts_j,
        "per_rank": [known[rank] for rank in running],
        "uses": energy["uses"],
    }


def power_over_time(log: OpLog, machine: Machine, ranks: int) -> list[tuple[Column, Column]]:
    """Return the watts of each rank's device, and from which times on, in ps, it draws them.

    A command draws its energy evenly from its start to its end, but for what commands that run side
    by side would draw above the device's limit (:func:`_held`); the last of the times is the end of
    the log. Empty for a machine that says nothing of energy.
    """
    spans = build_spans(log)
    powers = _powers(spans, machine, ranks)
    if powers is None:
        return [(np.zeros(0, dtype=np.int64), np.zeros(0))] * ranks
    entries = _by_rank(spans, ranks)
    waits = _exposed_of(spans, entries)
    drawn = _drawn(spans, _energies(spans), entries, waits, powers, log.end_ps)
    return [(item.times_ps, item.watts) for item in drawn]


def average_watts(
    log: OpLog, machine: Machine, ranks: int, start_ps: int, end_ps: int
) -> float | None:
    """Return what a device draws above idle between two times, on average over ranks and time.

    None for a machine that says nothing of energy.
    """
    result = []
    for times, watts in power_over_time(log, machine, ranks):
        if not len(times):
            return None
        drawn = np.concatenate([[0.0], np.cumsum(np.diff(times) * (watts[:-1] - watts[-1]))])
        before, after = np.interp([start_ps, end_ps], times, drawn)
        result.append((after - before) / max(end_ps - start_ps, 1))
    return float(np.mean(result))


def _by_rank(spans: Spans, ranks: int) -> list[Column]:
    """Return the entries of each rank."""
    order = np.argsort(spans.rank, kind="stable")
    return np.split(order, np.searchsorted(spans.rank[order], np.arange(1, ranks)))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What the device of a rank draws over time, and what its limit takes of it."""

    times_ps: Column
    watts: Column
    """The power from each time on, at the limit or below."""
    less: Column
    """The share of what its commands take on the clock that they do without from each time on."""


def _drawn(
    spans: Spans,
    parts: Mapping[Energy, Column],
    entries: Sequence[Column],
    waits: Sequence[tuple[Column, Column]],
    powers: Sequence[PowerSpec],
    end_ps: int,
) -> Iterator[_Drawn]:
    energies, on_clock = _sums(spans, parts)
    for mine, (waits_from, waits_to), power in zip(entries, waits, powers, strict=True):
        mine = mine[spans.end_ps[mine] > spans.start_ps[mine]]
        starts = np.concatenate([spans.start_ps[mine], waits_from])
        ends = np.concatenate([spans.end_ps[mine], waits_to])
        lasts = spans.end_ps[mine] - spans.start_ps[mine]
        times = distinct_values(np.concatenate([np.array([0, end_ps]), starts, ends]))
        first, last = np.searchsorted(times, starts), np.searchsorted(times, ends)

        def over_time(
            drawn: Column, first: Column = first, last: Column = last, num: int = len(times)
        ) -> Column:
            change = np.zeros(num)
            np.add.at(change, first[: len(drawn)], drawn)
            np.add.at(change, last[: len(drawn)], -drawn)
            # Sums of floats may come out a hair below zero where nothing runs.
            return np.maximum(np.cumsum(change), 0)

        running = np.full(len(waits_from), power.running_w)
        watts = float(power.idle_w) + over_time(np.concatenate([energies[mine] / lasts, running]))
        clocked = over_time(on_clock[mine] / lasts)
        # A kernel alone is held at the limit where its energy is counted, to a picojoule.
        above = np.where(watts > power.limit_w * (1 + 1e-9), watts - power.limit_w, 0.0)
        less = np.minimum(above, clocked)
        share = np.divide(less, clocked, out=np.zeros(len(times)), where=clocked > 0)
        yield _Drawn(times, watts - less, share)


def _sums(spans: Spans, parts: Mapping[Energy, Column]) -> tuple[Column, Column]:
    """Return what each entry takes in all, and on the clock that a limit lowers."""
    result = np.zeros((2, len(spans)), dtype=np.int64)
    for part, column in parts.items():
        result[0] += column
        if part in ON_CLOCK:
            result[1] += column
    return result[0], result[1]


def _held(
    spans: Spans,
    parts: dict[Energy, Column],
    entries: Sequence[Column],
    drawn: Sequence[_Drawn],
) -> dict[Energy, Column]:
    """Return what each entry takes where a device's limit holds for all that runs side by side.

    As for a kernel alone (:func:`pace_of`), engines and caches take less where more would be drawn,
    as they do at the lower voltage of a lower clock: each its share of what is above the limit.
    """
    held = np.zeros(len(spans))
    for mine, device in zip(entries, drawn, strict=True):
        if not device.less.any():
            continue
        mine = mine[spans.end_ps[mine] > spans.start_ps[mine]]
        lost_ps = np.concatenate([[0.0], np.cumsum(np.diff(device.times_ps) * device.less[:-1])])
        first, last = (
            np.searchsorted(device.times_ps, array[mine])
            for array in (spans.start_ps, spans.end_ps)
        )
        held[mine] = (lost_ps[last] - lost_ps[first]) / (spans.end_ps[mine] - spans.start_ps[mine])
    if not held.any():
        return parts
    return {
        part: np.rint(column * (1 - held)).astype(np.int64) if part in ON_CLOCK else column
        for part, column in parts.items()
    }


def _powers(spans: Spans, machine: Machine, ranks: int) -> list[PowerSpec] | None:
    """Return what the device of each rank draws, None if one says nothing of it.

    A device without commands has the rank's number.
    """
    sips = {rank: rank % machine.num_sips for rank in range(ranks)}
    sips |= dict(zip(spans.rank.tolist(), spans.sip.tolist(), strict=True))
    powers = [machine.sip_at(sips[rank] % machine.num_sips).power for rank in range(ranks)]
    known = [power for power in powers if power is not None]
    return known if len(known) == ranks else None


def _energies(spans: Spans) -> dict[Energy, Column]:
    """Return what each entry takes, by part; without parts that nothing takes."""
    used = {part for template in spans.templates for part, pj in template.energy_pj.items() if pj}
    return {part: _shares(spans, part) for part in Energy if part in used}


def _shares(spans: Spans, part: Energy) -> Column:
    """Return each entry's share of what its template takes for a part."""
    totals = []
    for template in spans.templates:
        pj = template.energy_pj.get(part, 0)
        by_rank = template.hbm_bytes_by_rank if part is Energy.HBM else ()
        totals.append((pj, _in_proportion(pj, by_rank)))
    return spans.shares(totals)


def _in_proportion(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return parts of ``total`` in proportion to weights, which add up to it."""
    whole = sum(weights)
    if not whole:
        return ()
    bounds = [total * sum(weights[:number]) // whole for number in range(len(weights) + 1)]
    return tuple(after - before for before, after in pairwise(bounds))


def _inside(spans: Spans, entries: Sequence[Column], within: Window) -> Callable[[Column], Column]:
    """Return what gives the part of each entry's energy that it takes in a window.

    ``entries`` are those of each rank.
    """
    edges = (spans.start_ps, spans.start_ps + 1, spans.end_ps)
    starts, begun, ends = _until(within, entries, edges)
    times_ps, overlaps_ps = spans.end_ps - spans.start_ps, ends - starts
    is_whole = np.where(times_ps > 0, overlaps_ps == times_ps, begun > starts)
    cut = []
    for entry in np.flatnonzero((overlaps_ps > 0) & (overlaps_ps < times_ps)).tolist():
        start_ps, end_ps = int(spans.start_ps[entry]), int(spans.end_ps[entry])
        parts = within.clipped(int(spans.rank[entry]), start_ps, end_ps)
        cut.append((entry, end_ps - start_ps, [(a - start_ps, b - start_ps) for a, b in parts]))

    def inside(energy_pj: Column) -> Column:
        column: Column = np.where(is_whole, energy_pj, 0)
        for entry, time_ps, parts in cut:
            pj = int(energy_pj[entry])  # the products are beyond 64 bits
            column[entry] = sum(pj * b // time_ps - pj * a // time_ps for a, b in parts)
        return column

    return inside


def _until(
    within: Window, entries: Sequence[Column], edges: tuple[Column, ...]
) -> tuple[Column, ...]:
    """Return how much of a window lies before some times of each entry."""
    result = tuple(np.zeros_like(times_ps) for times_ps in edges)
    for rank, mine in enumerate(entries):
        for array, times_ps in zip(result, edges, strict=True):
            array[mine] = within.until(rank, times_ps[mine])
    return result


def _uses(
    spans: Spans,
    energies: Mapping[Energy, Column],
    entries: Sequence[Column],
    within: Window | None,
) -> Iterator[_EnergyUse]:
    num = len(spans.templates)
    # Of the pairs of a rank and a template, which are many where ranks are, few occur.
    cells, cell = np.unique(spans.rank * num + spans.template, return_inverse=True)

    def summed(values: Column) -> Column:
        result = np.zeros(len(cells), dtype=np.int64)
        np.add.at(result, cell, values)
        return result

    counts = np.bincount(cell, minlength=len(cells))
    times = summed(spans.end_ps - spans.start_ps)
    if within is not None:
        edges = (spans.start_ps, spans.start_ps + 1, spans.end_ps)
        starts, begun, ends = _until(within, entries, edges)
        counts, times = summed(begun - starts), summed(ends - starts)
    parts = {part: summed(column) for part, column in energies.items()}
    for index, pair in enumerate(cells.tolist()):
        rank, number = divmod(pair, num)
        if not (counts[index] or times[index]):
            continue
        yield _EnergyUse(
            rank,
            spans.templates[number].kind,
            spans.templates[number].name,
            int(counts[index]),
            int(times[index]),
            {part.value: int(column[index]) for part, column in parts.items() if column[index]},
        )


def _exposed_of(spans: Spans, entries: Sequence[Column]) -> list[tuple[Column, Column]]:
    """Return when each rank is in a collective and no kernel of it runs: starts and ends.

    ``entries`` are those of each rank.
    """
    kinds = np.array([template.kind for template in spans.templates], dtype="U10")
    return [_exposed(spans, kinds[spans.template[mine]], mine) for mine in entries]


def _exposed(spans: Spans, kinds: npt.NDArray[np.str_], mine: Column) -> tuple[Column, Column]:
    talks, runs = (mine[kinds == kind] for kind in ("collective", "kernel"))
    both = np.concatenate([talks, runs])
    edges = distinct_values(np.concatenate([spans.start_ps[both], spans.end_ps[both]]))
    exposed = (_covering(spans, talks, edges) > 0) & (_covering(spans, runs, edges) == 0)
    first = np.flatnonzero(exposed)
    return edges[first], edges[np.minimum(first + 1, len(edges) - 1)]


def _covering(spans: Spans, which: Column, edges: Column) -> Column:
    """Return how many of some entries cover the time from each edge to the next."""
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, spans.start_ps[which]), 1)
    np.add.at(change, np.searchsorted(edges, spans.end_ps[which]), -1)
    return np.cumsum(change)


def _waiting(
    waits: Sequence[tuple[Column, Column]], powers: Sequence[PowerSpec], within: Window
) -> Iterator[_EnergyUse]:
    """Yield what devices take beside the bytes while collectives run and no kernel does."""
    for rank, ((starts, ends), power) in enumerate(zip(waits, powers, strict=True)):
        time_ps = int((within.until(rank, ends) - within.until(rank, starts)).sum())
        pj = round(power.running_w * time_ps)
        if pj:
            parts = {Energy.CLOCKS.value: pj}
            yield _EnergyUse(rank, "collective", WAITING, 0, time_ps, parts)


def _by_name(uses: list[_EnergyUse], powers: Sequence[PowerSpec]) -> list[UseEnergy]:
    groups: dict[tuple[str, str], list[_EnergyUse]] = {}
    for use in uses:
        groups.setdefault((use.kind, use.name), []).append(use)
    use_energies: list[UseEnergy] = []
    for (kind, name), mine in groups.items():
        parts: defaultdict[str, int] = defaultdict(int)
        idle_pj = time_ps = 0.0
        for use in mine:
            time_ps += use.time_ps
            idle_pj += float(powers[use.rank].idle_w) * use.time_ps
            for part, pj in use.parts_pj.items():
                parts[part] += pj
        total = sum(parts.values())
        use_energies.append(
            {
                "name": name,
                "kind": kind,
                "count": sum(use.count for use in mine),
                "energy_j": total / _PJ_PER_J,
                "parts_j": {part: pj / _PJ_PER_J for part, pj in parts.items()},
                "average_w": (total + idle_pj) / time_ps if time_ps else 0.0,
            }
        )
    return sorted(use_energies, key=lambda energy: (-energy["energy_j"], energy["name"]))
