"""What engines ask of a device or of memory, for which no kernel runs."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, META, unobserved
from kernbench.torch_bridge.placement.residence import reside, storage_of
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import defines


def view_of_host(host: Tensor) -> Tensor:
    """Return a tensor of the current device in the memory of a host's tensor.

    Writes to one show in the other, in a run without data, too. Its address is one of the device's
    memory, of which it takes as much.
    """
    storage = storage_of(host)
    with unobserved():
        whole = torch.empty(0, dtype=torch.uint8, device=CPU).set_(storage)
        if current().session.run.has_data:
            shared = torch.from_numpy(whole.numpy()).untyped_storage()
        else:
            shared = torch.UntypedStorage(storage.nbytes(), device=META)
            shared._known = storage
        view = torch.empty(0, dtype=host.dtype, device=shared.device)
        view.set_(shared, host.storage_offset(), host.shape, host.stride())
    device = torch.device(DEVICE_TYPE, torch.cuda.current_device())
    reside(shared, device, "a view of the host's memory")
    current().session.views_host = True
    return view


@defines("get_cuda_view_from_cpu_tensor", takes="cpu_tensor", on_host=True)
def _view(call: OperatorCall) -> Tensor:
    return view_of_host(call.cpu_tensor)


@defines("weak_ref_tensor", takes="input", shapes=lambda call: torch.empty_like(call.input))
def _weak_ref(call: OperatorCall) -> Tensor:
    return call.input.detach()


def _capability_from(*names: str, least: int) -> None:
    @defines(*names, takes="cuda_device_capability", on_host=True)
    def supports(call: OperatorCall) -> bool:
        return bool(call.cuda_device_capability >= least)


_capability_from("cutlass_scaled_mm_supports_fp8", least=89)
_capability_from("cutlass_scaled_mm_supports_block_fp8", least=90)


@defines(
    "cutlass_group_gemm_supported",
    "cutlass_scaled_mm_supports_fp4",
    "mxfp4_experts_quant_supported",
    takes="cuda_device_capability",
    on_host=True,
)
def _lacks(call: OperatorCall) -> bool:
    current().session.lacking_operators[describe(call.func).name] = None
    return False


_ATTRIBUTES = {
    8: "shared_memory_per_block",
    16: "multi_processor_count",
    75: "major",
    76: "minor",
    97: "shared_memory_per_block_optin",
}
"""Properties of devices by the numbers of ``cudaDeviceAttr``."""


@defines("get_device_attribute", takes="attribute device_id", on_host=True)
def _attribute(call: OperatorCall) -> int:
    name = _ATTRIBUTES.get(call.attribute)
    if name is None:
        raise UnsupportedTorchError(
            f"get_device_attribute({call.attribute}): of cudaDeviceAttr kernbench has "
            f"{', '.join(f'{number} ({name})' for number, name in _ATTRIBUTES.items())}"
        )
    return int(getattr(torch.cuda.get_device_properties(call.device_id), name))


@defines("get_max_shared_memory_per_block_device_attribute", takes="device_id", on_host=True)
def _most_shared_memory(call: OperatorCall) -> int:
    return int(torch.cuda.get_device_properties(call.device_id).shared_memory_per_block_optin)
