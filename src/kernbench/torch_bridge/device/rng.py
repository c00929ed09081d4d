"""Random numbers of simulated devices: a generator has a seed and an offset, as on a GPU.

The numbers themselves are the CPU generator's: consecutive draws give what the same draws give on
the CPU after the same seed (ADR-0063). At an offset that no draw has reached, numbers follow from
the seed and the offset alone. They are not the numbers of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed.tensor._random as dtensor_random
from torch import Tensor
from torch.distributed.device_mesh import _get_device_handle

from kernbench.torch_bridge.base.arguments import checked
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import MixedDevicesError
from kernbench.torch_bridge.device.streams import refuse_in_capture
from kernbench.torch_bridge.placement.names import (
    CPU,
    DEVICE_TYPE,
    EXECUTING,
    check_index,
    is_simulated,
    with_index,
)
from kernbench.torch_bridge.processes.process import RandomState, current

_Generator: Any = torch.Generator
_64_BITS = (1 << 64) - 1
_STATE = Struct("<QQ")
_MOST_POSITIONS = 4096
_PER_OFFSET = 4
"""A GPU's generator makes four numbers at a time, so that offsets are multiples of 4."""


def manual_seed(seed: int) -> None:
    """Seed the calling rank's device; a negative seed is read as 64 unsigned bits."""
    _seed(current().random_state, seed)


def initial_seed() -> int:
    """Return the seed of the calling rank's device."""
    return current().random_state.seed


def seed() -> int:
    """Seed the calling rank's device with a number from the host's generator, and return it."""
    return _seed_by_host(current().random_state)


def get_rng_state(device: Any = DEVICE_TYPE) -> Tensor:
    """Return seed and offset as 16 bytes, the layout of CUDA's state."""
    return _to_tensor(current().random_state)


def set_rng_state(state: Tensor, device: Any = DEVICE_TYPE) -> None:
    """Set seed and offset from the bytes of :func:`get_rng_state`."""
    _from_tensor(current().random_state, state)


class _OfDTensor:
    """``torch.cuda`` for DTensor, whose numbers at an offset must be equal on all ranks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    @staticmethod
    def set_rng_state(state: Tensor, device: Any = DEVICE_TYPE) -> None:
        """Set seed and offset, independently of what this rank has drawn before."""
        set_rng_state(state)
        current().random_state.position = None


def install(patches: Patches) -> None:
    """Let DTensor draw equal numbers on all ranks."""
    patches.set(dtensor_random, "_get_device_handle", _handle)


def _handle(kind: str = DEVICE_TYPE) -> Any:
    return _OfDTensor() if kind == DEVICE_TYPE else _get_device_handle(kind)


def _seed(state: RandomState, seed: int) -> None:
    try:
        seed = int(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"manual_seed(): argument 'seed' must be int, but got {seed!r}") from None
    if not -(1 << 63) <= seed < 1 << 64:
        raise RuntimeError(f"a seed must fit in 64 bits, but got {seed}")
    if seed & _64_BITS != state.seed:
        refuse_in_capture("a new seed for a device's random numbers")
    state.seed, state.offset, state.position = seed & _64_BITS, 0, None


def _seed_by_host(state: RandomState) -> int:
    number = int(torch.randint(2**63 - 1, (), device=CPU).item())
    _seed(state, number)
    return number


def _to_tensor(state: RandomState) -> Tensor:
    """Return the 16 bytes of a state; the CPU generator's state follows them in the storage."""
    _only_graphsafe("get_state")
    _remember(state)
    shown = _STATE.pack(state.seed, state.offset)
    if state.position is None:
        return torch.frombuffer(bytearray(shown), dtype=torch.uint8)
    raw = bytearray(shown + shown + state.position.numpy().tobytes())
    return torch.frombuffer(raw, dtype=torch.uint8)[: _STATE.size]


def _from_tensor(state: RandomState, tensor: Tensor) -> None:
    _only_graphsafe("set_state")
    if not isinstance(tensor, Tensor) or tensor.nbytes != _STATE.size:
        raise RuntimeError(
            f"the state of a device's generator must be a tensor of {_STATE.size} bytes, as "
            f"get_state() returns it, but got {tensor!r}"
        )
    shown = bytes(tensor.view(torch.uint8).tolist())
    state.seed, state.offset = _STATE.unpack(shown)
    state.position = _behind(tensor, shown)
    if state.position is None:
        state.position = _known_position(state.seed, state.offset)


def _behind(tensor: Tensor, shown: bytes) -> Tensor | None:
    """Return what :func:`_to_tensor` stored after a state, unless the state was changed."""
    if tensor.storage_offset() or tensor.device != CPU:
        return None
    storage = tensor.untyped_storage()
    raw = ctypes.string_at(storage.data_ptr(), storage.nbytes())
    if raw[_STATE.size : 2 * _STATE.size] != shown:
        return None
    return torch.frombuffer(bytearray(raw[2 * _STATE.size :]), dtype=torch.uint8)


def _remember(state: RandomState) -> None:
    """Keep the CPU generator's state for a state that a program reads: it may return to it."""
    if state.position is not None:
        process = current()
        for known in (process.random_positions, process.session.random_positions):
            known[state.seed, state.offset] = state.position
            if len(known) > _MOST_POSITIONS:
                del known[next(iter(known))]


def _known_position(seed: int, offset: int) -> Tensor | None:
    process, key = current(), (seed, offset)
    tensor: Tensor | None = process.random_positions.get(key)
    return process.session.random_positions.get(key) if tensor is None else tensor


def _only_graphsafe(what: str) -> None:
    # How many numbers were drawn is known only when the graph is replayed.
    refuse_in_capture(f"{what} of a device's random numbers (see graphsafe_{what})")


_OF_DEVICES: WeakValueDictionary[int, Generator] = WeakValueDictionary()
"""Device generators by their C++ address, which is all that operations get."""


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Generator)


class Generator(_Generator, metaclass=_Kind):
    """``torch.Generator``: on a device it has a seed and an offset, which others may share."""

    random_state: RandomState | None = None
    """None for a generator of the host."""
    _where: torch.device | None = None

    def __new__(cls, device: Any = "cpu") -> Generator:
        if not is_simulated(device):
            generator: Generator = super().__new__(cls, device)
            return generator
        result: Generator = super().__new__(cls, "cpu")
        result._where, result.random_state = with_index(device), RandomState()
        _OF_DEVICES[result._cdata] = result
        return result

    @property
    def device(self) -> torch.device:
        return super().device if self._where is None or EXECUTING.depth else self._where

    def manual_seed(self, seed: int) -> Generator:
        """Seed it, and start at offset 0."""
        if self.random_state is None:
            super().manual_seed(seed)
        else:
            _seed(self.random_state, seed)
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        state = self.random_state
        return super().initial_seed() if state is None else state.seed

    def seed(self) -> int:
        """Seed it with a number from the host's generator, and return that."""
        state = self.random_state
        return super().seed() if state is None else _seed_by_host(state)

    def get_state(self) -> Tensor:
        """Return a copy of its state, on the host."""
        state = self.random_state
        return super().get_state() if state is None else _to_tensor(state)

    def set_state(self, state: Tensor) -> Generator:
        """Continue from a state that :meth:`get_state` has returned."""
        if self.random_state is None:
            super().set_state(state)
        else:
            _from_tensor(self.random_state, state)
        return self

    def get_offset(self) -> int:
        """Return how many numbers were drawn, as a multiple of 4."""
        state = self.random_state
        if state is None:
            return super().get_offset()
        _remember(state)
        return state.offset

    @checked
    def set_offset(self, offset: int) -> Generator:
        """Continue from an offset.

        Raises:
            RuntimeError: It is not a multiple of 4.
        """
        if self.random_state is None:
            super().set_offset(offset)
        elif offset % _PER_OFFSET or offset < 0:
            raise RuntimeError(f"offset must be a multiple of {_PER_OFFSET}, but got {offset}")
        else:
            state = self.random_state
            state.go_to(offset, _known_position(state.seed, offset))
        return self

    def clone_state(self) -> Generator:
        """Return a generator that starts from the same state and advances independently."""
        state = self.random_state
        if state is None:
            return super().clone_state()
        return _with_state(self.device, RandomState(state.seed, state.offset, state.position))

    def graphsafe_get_state(self) -> Generator:
        """Return a generator that shares this one's state: draws of either advance both."""
        state = self.random_state
        return super().graphsafe_get_state() if state is None else _with_state(self.device, state)

    def graphsafe_set_state(self, state: Generator) -> Generator:
        """Share the state of another device generator from now on.

        Raises:
            TypeError: It is not a device generator.
        """
        if self.random_state is None:
            return super().graphsafe_set_state(state)
        shared = getattr(state, "random_state", None)
        if shared is None:
            raise TypeError(
                "graphsafe_set_state takes a generator of a device, as graphsafe_get_state() and "
                f"clone_state() return it, but got {state!r}"
            )
        self.random_state = shared
        return self


def _with_state(device: torch.device, state: RandomState) -> Generator:
    generator = Generator(device)
    generator.random_state = state
    return generator


class DefaultGenerator(Generator):
    """The default generator of a device, with the calling rank's state."""

    @property
    def random_state(self) -> RandomState:
        return current().random_state

    @random_state.setter
    def random_state(self, state: RandomState) -> None:
        current().random_state = state


class DefaultGenerators:
    """Replaces ``torch.cuda.default_generators``; a rank has one state for all devices."""

    def __init__(self) -> None:
        self._known: dict[int, DefaultGenerator] = {}

    def __len__(self) -> int:
        return current().session.num_devices

    def __getitem__(self, index: int) -> DefaultGenerator:
        check_index(index)
        default_generator = self._known.get(index)
        if default_generator is None:
            generator: DefaultGenerator = _Generator.__new__(DefaultGenerator, "cpu")
            generator._where = torch.device(DEVICE_TYPE, index)
            _OF_DEVICES[generator._cdata] = generator
            default_generator = self._known[index] = generator
        return default_generator


def state_for(generator: Any) -> RandomState | None:
    """Return the state that an operation on a device draws from; None: a generator of the host."""
    if generator is None:
        return current().random_state
    result = known_generator(generator)
    return None if result is None else result.random_state


def known_generator(generator: Any) -> Generator | None:
    """Return the device generator that was passed to an operation, None if none was."""
    return None if generator is None else _OF_DEVICES.get(generator._cdata)


def check_generator(generator: Any, kind: str) -> None:
    """Refuse a generator that is not of the kind of device that an operation draws on."""
    actual = CPU.type if known_generator(generator) is None else DEVICE_TYPE
    if generator is not None and actual != kind:
        raise MixedDevicesError(
            f"Expected a '{kind}' device type for generator but found '{actual}'"
        )


def skip_numbers(num_elements: int, generator: Any = None) -> None:
    """Advance an offset as if this many numbers had been drawn."""
    state = state_for(generator)
    if state is not None:
        state.offset += -(-num_elements // _PER_OFFSET) * _PER_OFFSET


@contextmanager
def device_generator(num_elements: int, generator: Any = None) -> Iterator[None]:
    """Let the CPU's default generator draw a device's numbers, and advance the device's state."""
    state = state_for(generator)
    assert state is not None
    drawing = torch.default_generator if generator is None else generator
    before = _Generator.get_state(drawing)
    if state.position is not None:
        _Generator.set_state(drawing, state.position)
    else:
        # An odd factor far from powers of two, lest offsets of one seed collide with the next's.
        seed = state.seed + state.offset * 0x9E3779B97F4A7C15
        _Generator.manual_seed(drawing, seed & _64_BITS)
    try:
        yield
    finally:
        state.position = _Generator.get_state(drawing)
        _Generator.set_state(drawing, before)
        skip_numbers(num_elements, generator)
