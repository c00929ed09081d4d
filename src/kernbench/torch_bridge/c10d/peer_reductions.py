"""All-reduces that engines bring for ranks of a node: kernels that load what their peers have.

Ranks exchange handles of CUDA's IPC and give what they opened by them; a handle says whose memory
it is of. Small tensors are reduced in one shot, larger ones in two. Source: vLLM's
``csrc/custom_all_reduce.cuh``, from which SGLang's is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed import ReduceOp

from kernbench.errors import UsageError
from kernbench.torch_bridge.c10d import data
from kernbench.torch_bridge.c10d.calls import Call, signature
from kernbench.torch_bridge.c10d.data import name_of
from kernbench.torch_bridge.c10d.process_group import NcclGroup
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, META, unobserved
from kernbench.torch_bridge.placement.residence import reside, storage_of
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import defines

_HANDLE_BYTES = 64
_RANK_SHIFT = 40
_ONE_SHOT_BYTES = ((2, 1 << 40), (4, 512 << 10), (8, 256 << 10))
"""Up to which sizes groups of up to so many ranks reduce in one shot."""
_SIGNALS = 1 << 12
"""Bytes that a rank has for the signals of its peers: these are no part of the model."""


@dataclass(slots=True)
class OwnPeers:
    """What a process has of such memory."""

    memory: dict[int, Tensor] = field(default_factory=dict)
    """By address."""
    groups: list[NcclGroup] = field(default_factory=list)


def _own() -> OwnPeers:
    return current().part(OwnPeers)


def _in_engines(name: str) -> tuple[str, ...]:
    return tuple(f"{item}::{name}" for item in ("_C_custom_ar", "sgl_kernel"))


@defines(*_in_engines("meta_size"), on_host=True)
def _meta_size(call: OperatorCall) -> int:
    return _SIGNALS


@defines(*_in_engines("allocate_shared_buffer_and_handle"), takes="size", on_host=True)
def _allocate(call: OperatorCall) -> tuple[int, Tensor]:
    own = _own()
    address = (current().state.rank + 1 << _RANK_SHIFT) + 256 * (len(own.memory) + 1)
    has_data = current().session.run.has_data
    with unobserved():
        memory = torch.empty(call.size, dtype=torch.uint8, device=CPU if has_data else META)
    device = torch.device(DEVICE_TYPE, torch.cuda.current_device())
    reside(storage_of(memory), device, "memory of peers")
    own.memory[address] = memory
    raw = struct.pack("<q", address).ljust(_HANDLE_BYTES, b"\0")
    with unobserved():
        return address, torch.tensor(list(raw), dtype=torch.uint8, device=CPU)


@defines(*_in_engines("open_mem_handle"), takes="mem_handle", on_host=True)
def _open(call: OperatorCall) -> int:
    with unobserved():
        (address,) = struct.unpack("<q", bytes(call.mem_handle.tolist()[:8]))
    return int(address)


@defines(*_in_engines("free_shared_buffer"), takes="ptr", on_host=True)
def _free(call: OperatorCall) -> None:
    _own().memory.pop(call.ptr, None)


@defines(
    *_in_engines("init_custom_ar"),
    takes="ipc_tensors rank_data rank",
    on_host=True,
    ignores="fully_connected full_nvlink",
)
def _init(call: OperatorCall) -> int:
    ranks = sorted((ipc_tensor >> _RANK_SHIFT) - 1 for ipc_tensor in call.ipc_tensors)
    folding = current().session.run.folding
    for group, to_position in c10d._world.pg_group_ranks.items():
        # What ranks gather that another one runs for is that one's.
        of_group = [folding.representative(rank) if folding else rank for rank in to_position]
        if isinstance(group, NcclGroup) and sorted(of_group) == ranks:
            own = _own()
            own.groups.append(group)
            return len(own.groups)
    raise UsageError(
        f"init_custom_ar: ranks {ranks} have no group of NCCL, by which they reduce what is too "
        "large; make one, or leave custom all-reduce out (disable_custom_all_reduce)"
    )


@defines(*_in_engines("get_graph_buffer_ipc_meta"), on_host=True, ignores="fa")
def _graph_buffers(call: OperatorCall) -> tuple[list[int], list[int]]:
    return [], []


@defines(
    *(
        name
        for item in ("register_buffer", "register_graph_buffers", "dispose")
        for name in _in_engines(item)
    ),
    on_host=True,
    ignores="fa ipc_tensors handles offsets",
)
def _note(call: OperatorCall) -> None:
    pass


@defines(*_in_engines("all_reduce"), takes="fa inp out reg_buffer", ignores="reg_buffer_sz_bytes")
def _all_reduce(call: OperatorCall) -> None:
    own = _own()
    group = own.groups[call.fa - 1]
    view = call.inp
    if call.reg_buffer:
        # What peers do not see is copied to where they do.
        used = own.memory[call.reg_buffer][: call.inp.nbytes]
        view = used.view(call.inp.dtype).view(call.inp.shape)
        view.copy_(call.inp)
    ranks = group.size()
    most = next((size for number, size in _ONE_SHOT_BYTES if ranks <= number), 0)
    described = signature("all_reduce", [view], view.numel(), name_of(ReduceOp.SUM))
    described = replace(described, algorithm="one_shot" if call.inp.nbytes < most else "two_shot")
    group._post(
        Call(described, [view], [call.out], partial(data.all_reduce_into, ReduceOp.SUM))
    ).wait()
