from __future__ import annotations

import numpy as np

from kernbench.memory import Buffer, BytePool
from kernbench.memory.byte_pool import MOST_KEPT, SMALLEST

SIZE = SMALLEST


def make_buffer(pool: BytePool, size_bytes: int = SIZE) -> Buffer:
    return Buffer(0, size_bytes, 0, "x", has_data=True, pool=pool)


def test_the_bytes_of_a_dead_buffer_serve_again_and_are_zero() -> None:
    pool = BytePool()
    first = make_buffer(pool)
    first.bytes[:] = 7
    place = first.bytes.ctypes.data
    del first
    second = make_buffer(pool)
    assert second.bytes.ctypes.data == place
    assert not second.bytes.any()


def test_bytes_that_somebody_still_sees_are_never_handed_out() -> None:
    pool = BytePool()
    first = make_buffer(pool)
    view = np.ndarray((4,), np.float32, buffer=first.bytes.data)
    view[:] = 3
    del first
    second = make_buffer(pool)
    second.bytes[:] = 9
    assert view.tolist() == [3, 3, 3, 3]


def test_an_adopted_array_stays_its_owners() -> None:
    pool = BytePool()
    mine = np.full(SIZE // 4, 5, dtype=np.float32)
    first = make_buffer(pool)
    first.adopt(mine)
    del first
    make_buffer(pool).bytes[:] = 9
    assert (mine == 5).all()


def test_a_pool_keeps_a_bounded_amount() -> None:
    pool = BytePool()
    for _ in range(3):
        pool.give(np.zeros(MOST_KEPT // 2, dtype=np.uint8))
    assert pool._kept_bytes <= MOST_KEPT
    pool.give(np.zeros(SMALLEST - 1, dtype=np.uint8))
    assert pool._kept_bytes <= MOST_KEPT
