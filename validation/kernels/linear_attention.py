"""Linear attention: gated delta nets, KDA and Mamba-2, as their kernels go over a sequence.

A head keeps a state of keys by values. Decode reads and writes it once for each token. A prompt is
cut into chunks: products within every chunk run in parallel, then one program per head (or slice of
its values) walks from chunk to chunk with the state. Before either comes a convolution of a few
taps along the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernbench.hardware import SipSpec
from kernbench.library_kernels import LibraryKernel, Tiles, Trip, kept_share, stream

_STATE_BYTES = 4
"""Bytes per element of a state: float32."""
_ELEMENT_BYTES = 2
_CONV_TOKENS, _CONV_CHANNELS = 8, 256
"""The tokens and channels of a tile of the convolution."""
_CONV_RESIDENT = 8
_CHANNEL_TOKENS = 512
"""The tokens of one channel that a program takes in one step."""
_CHANNEL_RESIDENT = 16
_SEQUENCE_TOKENS = 1024
"""The tokens of a sequence that a program's threads take in one step, 16 bytes each."""
_DECODE_SLICES, _DECODE_RESIDENT = 4, 8
"""Programs among which the values of a head are split while it decodes, and of those on a PE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProblem:
    """Linear attention of one device's heads."""

    batch: int
    tokens: int
    """The tokens of each sequence."""
    heads: int
    """Heads of values, each with a state."""
    key_heads: int
    """Heads of keys and queries (Mamba-2: groups), shared by as many heads of values."""
    key_dim: int
    """Rows of a state (Mamba-2: ``d_state``)."""
    value_dim: int
    """Columns of a state (Mamba-2: ``head_dim``)."""
    chunk: int = 64

    @property
    def state_bytes(self) -> float:
        """Of all states."""
        return float(_STATE_BYTES * self.batch * self.heads * self.key_dim * self.value_dim)

    @property
    def chunks(self) -> int:
        """Of each sequence; the last may be short."""
        return math.ceil(self.tokens / self.chunk)


def causal_convolution(
    name: str, batch: int, tokens: int, channels: int, taps: int
) -> LibraryKernel:
    """Return the launch that convolves every channel along its sequence."""
    width = min(tokens, _CONV_TOKENS)
    count = batch * math.ceil(tokens / _CONV_TOKENS) * math.ceil(channels / _CONV_CHANNELS)
    columns = min(channels, _CONV_CHANNELS)
    moved = float(_ELEMENT_BYTES * batch * tokens * channels)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=count,
                trips=width,
                trip=Trip(
                    simple=2.0 * taps * columns,
                    transcendental=float(columns),
                    loaded_bytes=_ELEMENT_BYTES * columns * (width + taps - 1) / width,
                ),
                stored_bytes=float(_ELEMENT_BYTES * width * columns),
            ),
        ),
        resident=_CONV_RESIDENT,
        hbm_read_bytes=moved,
        hbm_written_bytes=moved,
        warm=True,
    )


def channel_convolution(
    name: str, batch: int, tokens: int, channels: int, taps: int
) -> LibraryKernel:
    """Return launches that convolve one sequence each, with a program for every channel.

    One follows the other so closely that only the first pays for a start: they are one kernel whose
    programs go over all sequences.
    """
    steps = math.ceil(tokens / _CHANNEL_TOKENS)
    moved = float(_ELEMENT_BYTES * batch * tokens * channels)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=channels,
                trips=batch * steps,
                trip=Trip(
                    simple=2.0 * taps * _CHANNEL_TOKENS,
                    loaded_bytes=_ELEMENT_BYTES * tokens / steps,
                ),
                stored_bytes=float(_ELEMENT_BYTES * batch * tokens),
            ),
        ),
        resident=_CHANNEL_RESIDENT,
        hbm_read_bytes=moved,
        hbm_written_bytes=moved,
        warm=True,
    )


def sequence_convolution(name: str, batch: int, tokens: int, channels: int) -> LibraryKernel:
    """Return the launch that has a program for every channel of every sequence.

    A program goes over its sequence in chunks; short ones take what a program takes at all.
    """
    moved = float(_ELEMENT_BYTES * batch * tokens * channels)
    chunks = math.ceil(tokens / _SEQUENCE_TOKENS)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=batch * channels,
                trips=chunks,
                trip=Trip(loaded_bytes=_ELEMENT_BYTES * tokens / chunks),
                stored_bytes=float(_ELEMENT_BYTES * tokens),
            ),
        ),
        resident=_CHANNEL_RESIDENT,
        hbm_read_bytes=moved,
        hbm_written_bytes=moved,
        warm=True,
    )


def convolution_update(
    name: str, batch: int, tokens: int, channels: int, taps: int, sip: SipSpec
) -> LibraryKernel:
    """Return the launch that convolves the next tokens and moves the kept ones on."""
    kept = float(_ELEMENT_BYTES * batch * channels * (taps - 1))
    moved = float(_ELEMENT_BYTES * batch * channels * tokens)
    # Every token of a draft leaves what is kept behind, so that a rejected one can be undone. The
    # first is written where it was read: the cache holds it once.
    launch = stream(name, kept + moved, kept * tokens + moved)
    missed = 1 - kept_share(kept * tokens + 2 * moved, sip)
    return replace(
        launch,
        hbm_read_bytes=launch.hbm_read_bytes * missed,
        hbm_written_bytes=launch.hbm_written_bytes * missed,
        warm=False,
    )


def recurrent_decode(
    name: str, problem: LinearProblem, sip: SipSpec, keeps_all: bool = False
) -> LibraryKernel:
    """Return the launch that takes states through the next tokens.

    ``keeps_all`` says whether the state after every token is written, rather than the last.
    """
    per_token = problem.key_heads * 2 * problem.key_dim + problem.heads * 2 * problem.value_dim
    moved = float(_ELEMENT_BYTES * problem.batch * problem.tokens * per_token)
    states = problem.state_bytes
    written = states * (problem.tokens if keeps_all else 1)
    # A last state is written where the first was read: the cache holds it once.
    missed = 1 - kept_share(moved + (written + states if keeps_all else states), sip)
    count = problem.batch * problem.heads * _DECODE_SLICES
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=count,
                trips=problem.tokens,
                trip=Trip(
                    simple=6.0 * problem.key_dim * problem.value_dim / _DECODE_SLICES,
                    loaded_bytes=(states + moved / 2) / count / problem.tokens,
                ),
                stored_bytes=(written + moved / 2) / count,
            ),
        ),
        resident=_DECODE_RESIDENT,
        hbm_read_bytes=(states + moved / 2) * missed,
        hbm_written_bytes=(written + moved / 2) * missed,
    )


def chunk_products(name: str, problem: LinearProblem) -> LibraryKernel:
    """Return all that runs on every chunk alone, as one launch.

    Cumulated gates, products of keys, the inverse of a triangle, what the state adds, outputs.
    """
    n, key, value = problem.chunk, problem.key_dim, problem.value_dim
    tiles = problem.batch * problem.heads * problem.chunks
    share = min(problem.tokens / (problem.chunks * n), 1.0)
    loaded = _ELEMENT_BYTES * (n * share * (4 * key + 3 * value) + key * value)
    stored = _ELEMENT_BYTES * n * share * (key + 3 * value)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=tiles,
                trips=1,
                trip=Trip(
                    flops=2.0 * n * (2 * n * key + 2 * n * value + n * n + key * value),
                    transcendental=2.0 * n * n,
                    simple=8.0 * n * n,
                    loaded_bytes=loaded,
                ),
                stored_bytes=stored,
            ),
        ),
        resident=2,
        hbm_read_bytes=tiles * loaded,
        hbm_written_bytes=tiles * stored,
        warm=True,
    )


def chunk_scan(
    name: str, problem: LinearProblem, sip: SipSpec, slices: int = 1, resident: int = 1
) -> LibraryKernel:
    """Return the launch that walks from chunk to chunk; a program has one of ``slices`` of a head.

    With one slice and no other launch it is a kernel that does all of a chunk's work on the way.
    """
    n, key = problem.chunk, problem.key_dim
    value = problem.value_dim / slices
    used = min(n, problem.tokens)
    count = problem.batch * problem.heads * slices
    loaded = _ELEMENT_BYTES * used * (2 * key + value)
    stored = problem.chunks * _ELEMENT_BYTES * used * value
    state = _STATE_BYTES * key * value
    read = count * (problem.chunks * loaded / slices + state)
    written = count * (stored + state)
    # The last state is written where the first was read: the cache holds it once.
    missed = 1 - kept_share(read + written - count * state, sip)
    return LibraryKernel(
        name=name,
        tiles=(
            Tiles(
                count=count,
                trips=problem.chunks,
                trip=Trip(
                    flops=2.0 * n * value * (2 * key + n),
                    simple=4.0 * n * value,
                    loaded_bytes=loaded,
                ),
                stored_bytes=stored + 2 * state,
            ),
        ),
        resident=resident,
        hbm_read_bytes=read * missed,
        hbm_written_bytes=written * missed,
    )
