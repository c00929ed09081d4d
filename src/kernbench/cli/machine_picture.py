"""A machine as a picture of text: PEs, memories and links, with the load of each in a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.saved import SavedRun

_WIDTH = 52


def machine_picture(machine: Machine, load: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of a picture of a machine: one device, and what joins it to the others.

    ``load`` is what stands beside a part, by its name: ``PEs``, ``cache``, ``HBM``, ``host``,
    ``links``, ``network``.
    """
    from kernbench.report import format_amount

    def rate(gbps: object) -> str:
        return format_amount(float(gbps) * 1e9, "B/s")  # type: ignore[arg-type]  # a Fraction

    sip, load = machine.sip, load or {}
    flops = {
        name: format_amount(float(sip.peak_flops_per_s(name)), "FLOP/s")
        for name in sip.pe.gemm.flops_per_clock
    }
    dtype = "bfloat16" if "bfloat16" in flops else next(iter(flops))
    inside = [
        ("PEs", f"{sip.num_pes} at {float(sip.clock_ghz):g} GHz, TCM of {sip.pe.tcm_kib} KiB each"),
        ("", f"GEMM {flops[dtype]} in {dtype}"),
        ("  ║", rate(sip.pe.dma_port_gbps * sip.num_pes)),
    ]
    if sip.cache is not None:
        size = f"{float(sip.cache.capacity_mib):g} MiB"
        inside += [("cache", f"{size}, {rate(sip.cache.bandwidth_gbps)}"), ("  ║", "")]
    bandwidth = rate(sip.cube.hbm_bandwidth_gbps * sip.num_cubes)
    inside += [("HBM", f"{sip.hbm_bytes / 2**30:.0f} GiB, {bandwidth}")]
    yield from _beside("host", f"  host ══ {rate(sip.host_link.bandwidth_gbps)} ══╗", load)
    yield f"  ┌ SIP, one of {machine.num_sips} ".ljust(_WIDTH, "─") + "┐"
    for name, text in inside:
        yield from _beside(name, f"  │ {name:<6} {text}".ljust(_WIDTH) + "│", load)
    yield "  └─────────╥".ljust(_WIDTH, "─") + "┘"
    links = machine.spec.links
    if links is not None:
        inner = f"links {rate(links.bandwidth_gbps)} each way, {machine.topology}"
        yield from _beside("links", f"            ╚══ {inner}", load)
    if links is not None and links.scale_out is not None:
        outer = links.scale_out
        count = machine.num_sips // machine.sips_per_node
        nodes = f"{count} node{'s' if count > 1 else ''} of {machine.sips_per_node}"
        text = f"network {rate(outer.port_gbps)} a port, {outer.topology}, {nodes}"
        yield from _beside("network", f"                ╚══ {text}", load)


def _beside(name: str, line: str, load: dict[str, str]) -> Iterator[str]:
    yield f"{line}  {load[name]}" if name in load else line


def load_of(run: SavedRun) -> dict[str, str]:
    """Return how much each part of a machine was used by a run, on average over ranks and time."""
    from kernbench.report import Timeline, format_share, peaks_of

    peaks, ranks = peaks_of(run.machine), run.report["per_rank"]
    whole_ns = float(run.report["time_ns"]) * max(len(ranks), 1)
    busy_ns = sum(float(rank["compute_ns"]) for rank in ranks)
    flops = sum(rank["flops"] for rank in ranks) / peaks.flops_per_ns
    moved_ns = sum(rank["hbm_bytes"] for rank in ranks) / peaks.hbm_bytes_per_ns
    values = {
        "PEs": f"busy {format_share(busy_ns, whole_ns)}, GEMM at "
        f"{format_share(flops, whole_ns)} of its peak",
        "HBM": f"{format_share(moved_ns, whole_ns)} of its bandwidth",
    }
    log, busy = run.log, {}
    timeline = Timeline(log, 1 << 20)
    for key in timeline.links():
        slices = timeline.track(key).slices
        busy[key.link] = int((slices.end_ps - slices.start_ps).sum()) / max(log.end_ps, 1)
    for name, inner in (("links", True), ("network", False)):
        shares = {
            n: value for n, value in busy.items() if (n < run.machine.num_inner_links) == inner
        }
        if shares:
            most = max(shares, key=shares.__getitem__)
            values[name] = (
                f"{len(shares)} used, the busiest {run.machine.links[most].name} "
                f"{format_share(shares[most], 1)}"
            )
    return values
