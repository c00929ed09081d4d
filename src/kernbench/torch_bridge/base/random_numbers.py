"""Random generators that a real process has once: a cheap exchange of their states among ranks.

Most turns draw no number, and most ranks resume from equal states. So a state that is still what it
was is the same object again, and is neither read out nor written. A release of CPython, PyTorch or
numpy that keeps its state elsewhere is slower, not wrong.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Words:
    """Bytes at an address."""

    def __init__(self, address: int, size: int) -> None:
        self._words = (ctypes.c_char * size).from_address(address)
        self._shown = self._words.raw

    def get(self) -> bytes:
        """Return the bytes: the same object as long as they do not change."""
        now = self._words.raw
        if now != self._shown:
            self._shown = now
        return self._shown

    def put(self, state: bytes) -> None:
        """Write bytes that :meth:`get` has returned."""
        if state != self.get():
            self._words.raw = self._shown = state


class PythonRandom:
    """The state of the module-level generator of ``random``.

    ``getstate`` returns 625 numbers, and takes longer than the rest of a switch between ranks.
    Where CPython keeps the state as words after the object's header, those are copied directly.
    """

    def __init__(self) -> None:
        self._generator: Any = random._inst
        head = object.__basicsize__
        size = random.Random.__base__.__basicsize__ - head  # type: ignore[union-attr]
        self._words = Words(id(self._generator) + head, size)
        self._shown: tuple[bytes, Any] = b"", None
        self.is_copied = self._shows(random.getstate()[1])

    def _shows(self, state: tuple[int, ...]) -> bool:
        """Return whether the words in memory are those that ``getstate`` returns."""
        *words, position = state
        layout = struct.Struct(f"@i{len(words)}I")
        raw = self._words.get()
        return layout.size <= len(raw) and layout.unpack_from(raw) == (position, *words)

    def get(self) -> Any:
        """Return the state: the same object as long as it does not change."""
        if not self.is_copied:
            return random.getstate()
        words, pair = self._words.get(), self._generator.gauss_next
        if words is not self._shown[0] or pair is not self._shown[1]:
            self._shown = words, pair
        return self._shown

    def put(self, state: Any) -> None:
        """Set the state to one that :meth:`get` returned."""
        if self.is_copied:
            words, self._generator.gauss_next = state
            self._words.put(words)
        else:
            random.setstate(state)


_MARK = 1.2345678901234567


class NumpyRandom:
    """The state of the module-level generator of ``numpy.random``.

    numpy gives the address of its words. The second number of a pair of normal ones is in the
    object around them; if it is found there, both are copied directly. Otherwise, or if a program
    has set another generator in its place, each process has an object of its own.
    """

    def __init__(self) -> None:
        numpy_random: Any = np.random
        self._get, self._set = numpy_random.get_bit_generator, numpy_random.set_bit_generator
        self._shared = self._get()
        self._pair = _pair_of(numpy_random.mtrand._rand)
        if self._pair is None or type(self._shared) is not np.random.MT19937:
            self._shared = None
        else:
            words = self._shared.state["state"]["key"]
            self._words = Words(self._shared.ctypes.state_address, words.nbytes + words.itemsize)
        self._shown: tuple[Any, bytes, bytes] = None, b"", b""

    @property
    def is_copied(self) -> bool:
        """Whether processes share the generator, and only its words are exchanged."""
        return self._shared is not None

    def get(self) -> Any:
        """Return the state: the same object as long as it does not change."""
        if self._shared is None or self._pair is None:
            return self._get(), b"", b""
        generator, words, pair = self._get(), self._words.get(), self._pair.get()
        shown = self._shown
        if generator is not shown[0] or words is not shown[1] or pair is not shown[2]:
            shown = self._shown = generator, words, pair
        return shown

    def put(self, state: Any) -> None:
        """Set the state to one that :meth:`get` returned."""
        generator, words, pair = state
        if generator is not self._get():
            self._set(generator)
        if words and self._pair is not None:
            self._words.put(words)
            # Setting a generator clears it.
            self._pair.put(pair)

    def copy(self, state: Any) -> Any:
        """Return the state for a new process."""
        generator, words, pair = state
        if generator is not self._shared:
            result = type(generator)(0)
            result.state = generator.state
            generator = result
        return generator, words, pair


def _pair_of(generator: Any) -> Words | None:
    """Return where a ``RandomState`` keeps the second number of a pair, with its flag."""
    state = generator.get_state(legacy=False)
    size = type(generator).__basicsize__
    try:
        generator.set_state({**state, "has_gauss": 1, "gauss": _MARK})
        raw = (ctypes.c_char * size).from_address(id(generator)).raw
        at = raw.find(struct.pack("@ixxxxd", 1, _MARK))
        return None if at < 0 else Words(id(generator) + at, struct.calcsize("@ixxxxd"))
    finally:
        generator.set_state(state)


class TorchRandom:
    """The state of PyTorch's generator of the host.

    PyTorch's own state is twice as long and needs a tensor. The bytes of the object, where their
    layout is known, only show whether it has changed.
    """

    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._shown = b"", self._generator.get_state()
        self._bytes = _bytes_of(self._generator, self._shown[1])

    @property
    def is_watched(self) -> bool:
        """Whether an unchanged state is recognized without reading it out."""
        return self._bytes is not None

    def get(self) -> tuple[bytes, Tensor]:
        """Return the object's bytes and the state: the same objects as long as nothing changes."""
        seen = b"" if self._bytes is None else self._bytes.get()
        if not seen or seen is not self._shown[0]:
            self._shown = seen, self._generator.get_state()
        return self._shown

    def put(self, state: tuple[bytes, Tensor]) -> None:
        """Set the state to one that :meth:`get` returned."""
        seen, values = state
        if self._bytes is None or seen != self._bytes.get():
            self._generator.set_state(values)


_FRONT = struct.Struct("@Qi?I")
"""The seed, how many words are left, whether it was seeded, and the position of the next word."""
_NUM_WORDS = 624
_PAIR_BYTES = 28
"""After the words: the second number of a normal pair, as float and as double."""


def _bytes_of(generator: Any, state: Tensor) -> Words | None:
    """Return the bytes of a generator's object that determine its next draws; None if not found."""
    told = state.numpy().tobytes()
    if len(told) < 24 + 8 * _NUM_WORDS:
        return None
    wanted = struct.pack(f"={_NUM_WORDS}I", *struct.unpack_from(f"={_NUM_WORDS}Q", told, 24))
    raw = (ctypes.c_char * (128 + len(wanted))).from_address(generator._cdata).raw
    start = raw.find(wanted) - _FRONT.size
    if start < 0:
        return None
    seed, left, _, place = _FRONT.unpack_from(raw, start)
    if (seed, left, place) != tuple(struct.unpack_from("=Qi4xQ", told)):
        return None
    words = Words(generator._cdata + start, _FRONT.size + len(wanted) + _PAIR_BYTES)
    return words if _shows_pairs(words, generator, state) else None


def _shows_pairs(words: Words, generator: Any, state: Tensor) -> bool:
    """Return whether the bytes change with every normal number: each second one is a pair's."""
    seen = [words.get()]
    try:
        for dtype in (torch.float32, torch.float64):
            for _ in range(4):
                torch.empty((), dtype=dtype).normal_(generator=generator)
                seen.append(words.get())
    finally:
        generator.set_state(state)
    return all(one != other for one, other in itertools.pairwise(seen))
