"""``torch.cuda._sleep``: a kernel that spins for a number of cycles."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernbench.op_log import Limit
from kernbench.torch_bridge.base.arguments import checked
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes
from kernbench.torch_bridge.processes.process import current


@checked
def spin(cycles: int) -> None:
    """Keep the current stream of the caller's device busy for a number of its clock cycles."""
    process = current()
    if process.capture is not None:
        raise UnsupportedTorchError(
            "torch.cuda._sleep in the capture of a CUDA graph: only operations on tensors are "
            "captured; sleep outside of the capture"
        )
    sip_id = process.state.sip_id
    sip = process.session.run.machine.sip_at(sip_id)
    template = timing_by_bytes("_sleep", sip, 0, 0).template(True)
    more_ps = sip.cycles_ps(cycles)
    limits_ps = {**template.limits_ps, Limit.LATENCY: sip.hbm_latency_ps + more_ps}
    # A single program on one PE: kernels of other streams run concurrently, as with a copy.
    process.host.copy(
        replace(template, duration_ps=template.duration_ps + more_ps, limits_ps=limits_ps), sip_id
    )


def install(patches: Patches) -> None:
    """Let programs keep devices busy, as tests of overlap do."""
    patches.set(torch._C, "_cuda_sleep", spin)
