"""Linear attention's launches: tiles against counting chunks and channels, bytes against states."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_machine
from validation.kernels import (
    LinearProblem,
    causal_convolution,
    channel_convolution,
    chunk_products,
    chunk_scan,
    convolution_update,
    recurrent_decode,
    sequence_convolution,
)

SIP = load_machine("h100-sxm").sip


def problem(batch: int = 16, tokens: int = 1, heads: int = 64) -> LinearProblem:
    return LinearProblem(
        batch=batch, tokens=tokens, heads=heads, key_heads=16, key_dim=128, value_dim=128
    )


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 96))
def test_a_scan_walks_the_chunks_of_every_head_one_after_another(
    batch: int, tokens: int, heads: int
) -> None:
    asked = problem(batch, tokens, heads)
    (scan,) = chunk_scan("test", asked, SIP, slices=4).tiles
    (products,) = chunk_products("test", asked).tiles
    chunks = math.ceil(tokens / 64)
    assert (scan.count, scan.trips) == (batch * heads * 4, chunks)
    assert (products.count, products.trips) == (batch * heads * chunks, 1)


def test_decode_reads_and_writes_every_state_once() -> None:
    states = 256 * 64 * 128 * 128 * 4
    kernel = recurrent_decode("test", problem(batch=256), SIP)
    assert kernel.hbm_read_bytes == pytest.approx(states, rel=0.02)
    assert kernel.hbm_written_bytes == pytest.approx(states, rel=0.02)


def test_a_draft_writes_the_state_after_each_of_its_tokens() -> None:
    states = 256 * 64 * 128 * 128 * 4
    draft = recurrent_decode("test", problem(batch=256, tokens=8), SIP, keeps_all=True)
    operands = 2 * 256 * 8 * (2 * 16 * 128 + 2 * 64 * 128)
    assert draft.hbm_read_bytes == pytest.approx(states + operands / 2)
    assert draft.hbm_written_bytes == pytest.approx(8 * states + operands / 2)


def test_a_state_that_stays_in_the_cache_is_held_once() -> None:
    """Read and written at one place: 20 MiB of states fit into the 25 MiB that are retained."""
    assert problem(batch=5).state_bytes == 20 * 2**20
    assert recurrent_decode("test", problem(batch=5), SIP).hbm_bytes == 0
    assert recurrent_decode("test", problem(batch=5), SIP, keeps_all=True).hbm_bytes > 0
    assert chunk_scan("test", problem(batch=5), SIP).hbm_bytes == 0


@given(st.integers(1, 64), st.integers(1, 3000), st.integers(1, 20480))
def test_convolutions_read_and_write_every_channel_of_every_token(
    batch: int, tokens: int, channels: int
) -> None:
    moved = 2 * batch * tokens * channels
    (tiles,) = causal_convolution("test", batch, tokens, channels, 4).tiles
    assert tiles.count * tiles.stored_bytes >= moved
    assert tiles.count * tiles.trips * tiles.trip.loaded_bytes >= moved
    (item,) = channel_convolution("test", batch, tokens, channels, 4).tiles
    assert item.count * item.stored_bytes == moved
    assert item.trips == batch * math.ceil(tokens / 512)
    (own,) = sequence_convolution("test", batch, tokens, channels).tiles
    assert own.count * own.stored_bytes == moved
    assert own.count * own.trips * own.trip.loaded_bytes == pytest.approx(moved)


def test_an_update_moves_what_is_kept_of_each_channel() -> None:
    kept, new = 2 * 256 * 18432 * 3, 2 * 256 * 18432
    kernel = convolution_update("test", 256, 1, 18432, 4, SIP)
    assert kernel.port_bytes == pytest.approx(2 * kept + 2 * new)
    few = convolution_update("test", 128, 1, 18432, 4, SIP)
    assert few.port_bytes == kernel.port_bytes / 2
    assert few.hbm_bytes == 0, "13.5 MiB that are kept and 9 MiB of operands fit into 25 MiB"
    assert kernel.hbm_bytes > 0
