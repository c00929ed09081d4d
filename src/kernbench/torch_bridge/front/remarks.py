"""The remarks at the end of a PyTorch program's report."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from kernbench.inputs import shipped_yaml
from kernbench.report import format_size as shown
from kernbench.torch_bridge.assigned import CAN_SEE_CLASSES

if TYPE_CHECKING:
    from kernbench.torch_bridge.front.session import Session


def remarks_of(session: Session) -> list[str]:
    """Return lines about the memory of ranks, and about operations whose time is approximate.

    Ranks with equal needs share a line. Without data a call is counted once for each of its
    shapes.
    """
    lines = [*_of_memory(session), *_of_costs(session)]
    if session.even_choices:
        lines.append(
            f"assumed: what routers choose at {', '.join(session.even_choices)} is taken to be "
            "even (balanced routing: each expert is as likely), as a run without data does "
            "not know it"
        )
    lines += [
        f"warning: {name}: on a device it may find other values; --check says what is missing"
        for name in session.unordered
    ]
    if session.left_out_compiling:
        lines.append(
            "torch.compile was left out, as KERNBENCH_COMPILE=eager asks: the program ran, and was "
            "timed, operation by operation"
        )
    if session.compiled_ps:
        lines.append(
            f"of all ranks' time, {session.compiled_ps / 1e12:.1f} s are compiling, as "
            "host.compile_share asks: it was measured here, and the next run takes another time"
        )
    lines += [*_of_what_ran_instead(session), *_of_processes(session)]
    left_out = set[str]().union(*(item.left_out for item in session.memories.settings.values()))
    if left_out:
        lines.append(
            "of what PYTORCH_ALLOC_CONF asks, not modeled, so that memory is assigned as without: "
            f"{', '.join(sorted(left_out))}"
        )
    devices, machine = session.num_devices, session.run.machine
    if devices < machine.sips_per_host:
        lines.append(
            f"machine {machine.name} has {machine.num_sips} devices, of which the program sees the "
            f"{devices} that PyTorch can number"
        )
    return lines


_REMARKS = shipped_yaml("kernbench.torch_bridge.front", "remarks.yaml")
"""What is said of attributes of a session, and of operations, by name."""


def _of_what_ran_instead(session: Session) -> list[str]:
    lines = []
    for attribute, said in _REMARKS["ran_instead"].items():
        value = getattr(session, attribute)
        if value:
            names = [] if value is True else list(value)
            lines.append(said.format(names=", ".join(names), sorted=", ".join(sorted(names))))
    return lines


def _of_processes(session: Session) -> list[str]:
    """Return lines about what processes would have that ranks have not."""
    lines = []
    seeds, where = session.hash_seeds, ", ".join(session.by_sets)
    if seeds:
        # The first is that of the process that starts them.
        alike = len(seeds) > 2 and len(set(seeds[1:])) == 1
        lines.append(
            "sets of strings that ranks' own modules make, and hash() there, followed each rank's "
            "own hash seed (--hash-seeds)"
            + (", and all were alike, as PYTHONHASHSEED is set" if alike else "")
            + "; what shared libraries make has one order"
        )
    if where:
        lines.append(
            f"collectives follow the order of a set of strings at {where}: "
            + (
                "ranks have an order each, by their hash seeds, as processes have, and reduce "
                "other tensors or hang; go over sorted(...) of it"
                if seeds
                else "ranks have one order here, as they share one hash seed, but processes have "
                "one each (PYTHONHASHSEED), and would reduce other tensors or hang: --hash-seeds "
                "shows it; go over sorted(...) of it"
            )
        )
    if not CAN_SEE_CLASSES and session.run.world_size > 1:
        lines.append(
            "what a rank assigns to attributes of classes or functions that all share holds for "
            "all of them, as kernbench can see such assignments on x86-64 only, where a process "
            "may make memory executable; packages can be each rank's own by --private PACKAGE"
        )
    if session.for_all and session.run.world_size > 1:
        lines.append(
            f"what {', '.join(session.for_all)} sets holds for all ranks, as they share one real "
            "process: each finds what the last has set"
        )
    if session.given_out and session.run.world_size > 1:
        listed = ", ".join(f"{name} ({where})" for name, where in session.given_out.items())
        lines.append(
            f"the program changes what {listed} returns, which is one object for all ranks: each "
            "finds what the last has set; packages can be each rank's own by --private PACKAGE"
        )
    if session.outside:
        lines.append(
            "Python programs that ranks started as processes of the operating system ran outside "
            f"of the simulation, without its devices and in no simulated time: "
            f"{', '.join(session.outside)}; ranks are started by --nproc-per-node or "
            "torch.multiprocessing, and workers by multiprocessing"
        )
    if session.reached:
        lines.append(
            f"sockets reached outside of the run, to {', '.join(session.reached)}: these are real, "
            "and take no simulated time, or the real clock's where an event loop waits for them"
        )
    return lines


def _of_memory(session: Session) -> list[str]:
    rows: list[tuple[str, str, int]] = []
    used = session.memories.allocators
    several = {
        process for process, count in Counter(process for process, _ in used).items() if count > 1
    }
    for (process, sip_id), allocator in used.items():
        amounts = allocator.amounts
        peaks = amounts.allocated_bytes.peak_of_run, amounts.reserved_bytes.peak_of_run
        if peaks[1]:
            capacity = session.memories.device(sip_id).capacity_bytes
            needs = f"{shown(peaks[0])} in tensors, {shown(peaks[1])} reserved of {shown(capacity)}"
            where = f" on {session.devices[sip_id]}" if process in several else ""
            rows.append((needs, where, process.rank))
    lines = []
    for (needs, where), group in groupby(sorted(rows), key=itemgetter(0, 1)):
        ranks = sorted({rank for *_, rank in group})
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}, each"
        lines.append(f"peak memory of {who}{where}: {needs}")
    return lines


def _of_costs(session: Session) -> list[str]:
    lines = []
    pricings = session.pricings.values()
    if session.run.has_data and any(pricing.costs.is_rounded for pricing in pricings):
        lines.append(
            "products of float32 that PyTorch computes in tf32 are timed as tf32; their values "
            "are those of float32"
        )
    unknown = sum((pricing.costs.unknown for pricing in pricings), Counter[str]())
    if unknown:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        lines.append(f"timed by their bytes alone, as their arithmetic is not modeled: {named}")
    for attribute, said in _REMARKS["of_operations"].items():
        names = sorted(set().union(*(getattr(pricing.costs, attribute) for pricing in pricings)))
        if names:
            lines.append(f"{said}: {', '.join(names)}")
    return lines
