"""The random numbers of a simulated device: a seed and an offset, as a GPU's are.

The numbers themselves are the CPU generator's. Right after seeding they are those that the same
seed gives on the CPU; the numbers of a GPU they are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.device.names import (
    DEVICE_TYPE,
    EXECUTING,
    check_index,
    is_simulated,
    with_index,
)
from kernbench.torch_bridge.process import current

_Generator: Any = torch.Generator
_64_BITS = (1 << 64) - 1
_STATE = Struct("<QQ")
_PER_OFFSET = 4
"""A GPU's generator makes four numbers at a time, and offsets are multiples of that."""


def manual_seed(seed: int) -> None:
    """Seed the calling rank's device; a negative seed is the 64 bits that it has."""
    seed = int(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise RuntimeError(f"a seed has 64 bits, but {seed} does not fit in them")
    current().device_rng = (seed & _64_BITS, 0)


def initial_seed() -> int:
    """Return the seed of the calling rank's device."""
    return current().device_rng[0]


def seed() -> int:
    """Seed the calling rank's device with a number of the host's generator, and return it."""
    made = int(torch.randint(2**63 - 1, ()).item())
    manual_seed(made)
    return made


def get_rng_state(device: Any = DEVICE_TYPE) -> Tensor:
    """Return seed and offset as the 16 bytes that CUDA's state is."""
    return torch.frombuffer(bytearray(_STATE.pack(*current().device_rng)), dtype=torch.uint8)


def set_rng_state(state: Tensor, device: Any = DEVICE_TYPE) -> None:
    """Take seed and offset from :func:`get_rng_state`."""
    current().device_rng = _STATE.unpack(bytes(state.view(torch.uint8).tolist()))


class DeviceGenerator:
    """The default generator of a device, as ``torch.cuda.default_generators`` holds it."""

    manual_seed = staticmethod(manual_seed)
    initial_seed = staticmethod(initial_seed)
    seed = staticmethod(seed)

    def get_state(self) -> Tensor:
        return get_rng_state()

    def set_state(self, state: Tensor) -> None:
        set_rng_state(state)


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, each: object) -> bool:
        return isinstance(each, _Generator)


class Generator(_Generator, metaclass=_Kind):
    """``torch.Generator``: one of a device is one of the CPU that says where it is."""

    _where: torch.device | None = None

    def __new__(cls, device: Any = "cpu") -> Generator:
        if not is_simulated(device):
            made: Generator = super().__new__(cls, device)
            return made
        made = super().__new__(cls, "cpu")
        made._where = with_index(device)
        return made

    @property
    def device(self) -> torch.device:
        return super().device if self._where is None or EXECUTING.depth else self._where


class DefaultGenerators:
    """Stands for ``torch.cuda.default_generators``; a rank has one state for all devices."""

    def __getitem__(self, index: int) -> DeviceGenerator:
        check_index(index)
        return DeviceGenerator()


def skip_numbers(num_elements: int) -> None:
    """Let the device's offset move on as if so many numbers had been made."""
    process = current()
    seed, offset = process.device_rng
    process.device_rng = (seed, offset + -(-num_elements // _PER_OFFSET) * _PER_OFFSET)


@contextmanager
def device_generator(num_elements: int) -> Iterator[None]:
    """Let the CPU's default generator give the device's numbers; the device's offset moves on."""
    process = current()
    seed, offset = process.device_rng
    generator = torch.default_generator
    before = generator.get_state()
    # An odd factor far from powers of two: offsets of one seed must not meet those of the next.
    generator.manual_seed((seed + offset * 0x9E3779B97F4A7C15) & _64_BITS)
    try:
        yield
    finally:
        generator.set_state(before)
        process.device_rng = (seed, offset)
        skip_numbers(num_elements)
