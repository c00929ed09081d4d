"""Times of launches in turn, as KernelBench's programs ask for them."""

from collections.abc import Iterable

from kernbench.hardware import SipSpec
from kernbench.library_kernels import BlockLaunch, time_blocks


def milliseconds(launches: Iterable[BlockLaunch], sip: SipSpec) -> float:
    return sum(time_blocks(launch, sip).total_us for launch in launches) / 1e3
