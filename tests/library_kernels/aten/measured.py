"""Times of launches in turn, as KernelBench's programs ask for them."""

from collections.abc import Iterable

from kernbench.hardware import SipSpec
from kernbench.library_kernels import BlockLaunch, time_blocks


def milliseconds(launches: Iterable[BlockLaunch], sip: SipSpec) -> float:
    return sum(time_blocks(each, sip).total_us for each in launches) / 1e3
