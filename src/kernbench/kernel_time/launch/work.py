"""What a launch asks of its device, counted: operations by kind, and bytes by level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from kernbench.commands import Gemm, Math, MathClass, Reduce
from kernbench.hardware import SipSpec
from kernbench.kernel_time.costs.command_costs import gemm_rate, num_elements
from kernbench.kernel_time.launch.waves import GroupWaves, Waves
from kernbench.kernel_time.program.timed_plan import CommandSite
from kernbench.op_log import WorkCounts


def launch_work(waves: Waves, sip: SipSpec, hbm_bytes: int) -> WorkCounts:
    """Return what all programs of a launch do; HBM moves ``hbm_bytes`` for them."""
    flops = Counter[str]()
    elements = Counter[str]()
    port_bytes = 0
    for group in waves.groups:
        for site, runs in _runs(group):
            for name, count in site_operations(site, sip).items():
                into = flops if isinstance(site.command, Gemm) else elements
                into[name] += count * runs
        for kind, count in zip(group.kinds, group.num_programs, strict=True):
            moved = (
                traffic.useful_bytes
                for traffic in kind.program_class.traffic
                if traffic is not None
            )
            port_bytes += sum(moved) * count
    return WorkCounts(flops=flops, elements=elements, port_bytes=port_bytes, hbm_bytes=hbm_bytes)


def site_operations(site: CommandSite, sip: SipSpec) -> Mapping[str, int]:
    """Return the operations of one run of a command: flops by rate, or elements by class."""
    command = site.command
    if isinstance(command, Gemm):
        return {gemm_rate(command, sip): command.flops}
    if isinstance(command, Math) and command.cost is not MathClass.FREE:
        return {command.cost.value: num_elements(command.dst.shape)}
    if isinstance(command, Reduce):
        return {MathClass.REDUCE.value: sum(num_elements(tile.shape) for tile in command.inputs)}
    return {}


def _runs(group: GroupWaves) -> Iterator[tuple[CommandSite, int]]:
    """Yield the commands of a group's text, and how often all its programs run each."""
    for site in group.plan.sites:
        yield (
            site,
            sum(
                kind.program_class.counts[site.index] * count
                for kind, count in zip(group.kinds, group.num_programs, strict=True)
            ),
        )
