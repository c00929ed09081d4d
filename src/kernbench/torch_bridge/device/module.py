"""``torch.cuda`` and ``torch.accelerator`` for simulated devices."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import torch
from torch import Tensor

from kernbench.hardware import MachineSpec
from kernbench.torch_bridge.base.arguments import checked
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import rng, streams
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, current_index, sip_of, with_index
from kernbench.torch_bridge.processes.process import current

_ARCHITECTURE = 90
"""The capability reported for machines that are not CUDA's: PyTorch uses all features with it."""
_NCCL_VERSION = (2, 27, 5)


def architecture_of(spec: MachineSpec) -> int:
    """Return the CUDA capability that programs see, in Triton's notation (90 for 9.0)."""
    return spec.cuda_architecture or _ARCHITECTURE


def device_count() -> int:
    """Return the number of devices that a program sees."""
    return current().session.num_devices


def set_device(device: Any) -> None:
    """Set the calling rank's device."""
    sip_id = sip_of(device)
    process = current()
    state = process.state
    if sip_id != state.sip_id:
        # Each device has its own current stream.
        process.streams[state.sip_id] = state.stream
        state.sip_id, state.stream = sip_id, process.streams.get(sip_id)


class DeviceContext:
    """``torch.cuda.device``: sets the rank's device within a block; None and -1 change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or device == -1 else with_index(device).index
        self._before: Any = None

    def __enter__(self) -> None:
        state = current().state
        self._before = (state.sip_id, state.stream)
        if self.idx != -1:
            set_device(self.idx)

    def __exit__(self, *error: object) -> None:
        state = current().state
        state.sip_id, state.stream = self._before


class DeviceOfContext(DeviceContext):
    """``torch.cuda.device_of``: sets the device of a tensor; one on the host changes nothing."""

    @checked
    def __init__(self, obj: Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else None)


_SHARED_UNASKED = 48 * 1024
"""Bytes of shared memory that a block has without asking for more, on every GPU of CUDA's."""


class CudaDeviceProperties(SimpleNamespace):
    """``torch.cuda._CudaDeviceProperties``: what a device has."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(vars(self).values()))


def get_device_properties(device: Any = None) -> CudaDeviceProperties:
    """Return the properties of a device."""
    machine = current().session.run.machine
    sip_id = sip_of(DEVICE_TYPE if device is None else device)
    sip, names = machine.sip_at(sip_id), (*machine.spec.devices, machine.name)
    cache_mib = 0.0 if sip.cache is None else float(sip.cache.capacity_mib)
    return CudaDeviceProperties(
        # A driver's, by which programs look up tables, if it is known.
        name=next((x for x in names if x.startswith("NVIDIA ")), f"{names[0]} (simulated)"),
        major=architecture_of(machine.spec) // 10,
        minor=architecture_of(machine.spec) % 10,
        total_memory=sip.hbm_bytes,
        multi_processor_count=sip.num_pes,
        is_integrated=0,
        is_multi_gpu_board=0,
        max_threads_per_block=1024,
        shared_memory_per_block=min(_SHARED_UNASKED, sip.shared_memory_bytes),
        shared_memory_per_block_optin=sip.shared_memory_bytes,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        L2_cache_size=int(cache_mib * 2**20),
        clock_rate=int(float(sip.clock_ghz) * 1e6),
        uuid=uuid5(NAMESPACE_URL, f"{machine.name}/{sip_id}"),
    )


def _capability(device: Any = None) -> tuple[int, int]:
    device_properties = get_device_properties(device)
    return device_properties.major, device_properties.minor


_ARCHITECTURES = (75, 80, 86, 90, 100, 120)
"""The architectures that PyTorch's wheels with CUDA 12.8 are compiled for."""


def _architectures() -> list[str]:
    own = architecture_of(current().session.run.machine.spec)
    return [f"sm_{architecture}" for architecture in sorted({*_ARCHITECTURES, own})]


def _set_random_states(new_states: Iterable[Tensor]) -> None:
    """``torch.cuda.set_rng_state_all``: that of the current device counts."""
    for index, state in enumerate(new_states):
        if index == current_index():
            rng.set_rng_state(state)


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Accept a call that has no effect on simulated devices."""


def install(patches: Patches) -> None:
    """Let both modules answer for the simulated machine."""
    patches.set_all(
        torch.cuda,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _initialized=True,
        init=_ignore,
        _lazy_init=_ignore,
        _is_in_bad_fork=lambda: False,
        device_count=device_count,
        current_device=current_index,
        set_device=set_device,
        device=DeviceContext,
        device_of=DeviceOfContext,
        _CudaDeviceProperties=CudaDeviceProperties,
        get_device_properties=get_device_properties,
        get_device_name=lambda device=None: get_device_properties(device).name,
        get_device_capability=_capability,
        get_arch_list=_architectures,
        is_bf16_supported=lambda *args, **kwargs: True,
        synchronize=streams.synchronize,
        StreamContext=streams.StreamContext,
        stream=streams.StreamContext,
        get_stream_from_external=streams.external_stream,
        set_stream=streams.set_stream,
        current_stream=streams.current_stream,
        default_stream=streams.default_stream,
        default_generators=rng.DefaultGenerators(),
    )
    for module in (torch.cuda, torch.cuda.streams):
        patches.set_all(
            module,
            Stream=streams.Stream,
            Event=streams.Event,
            ExternalStream=streams.external_stream,
        )
    patches.set_all(torch, streams.OF_ANY_DEVICE)
    # Programs take them from either module.
    for of_numbers in (torch.cuda, torch.cuda.random):
        patches.set_all(
            of_numbers,
            manual_seed=rng.manual_seed,
            manual_seed_all=rng.manual_seed,
            seed=rng.seed,
            seed_all=rng.seed,
            initial_seed=rng.initial_seed,
            get_rng_state=rng.get_rng_state,
            # A process has one generator for all devices.
            get_rng_state_all=lambda: [rng.get_rng_state() for _ in range(device_count())],
            set_rng_state=rng.set_rng_state,
            set_rng_state_all=_set_random_states,
        )
    patches.set_all(
        torch._C,
        _get_accelerator=lambda *args: torch.device(DEVICE_TYPE),
        # A separate object, as torch._dynamo has rules by function.
        _cuda_getDevice=lambda: current_index(),
    )
    patches.set(torch, "Generator", rng.Generator)
    patches.set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    patches.set(torch.version, "cuda", torch.version.cuda or "12.8")
