from __future__ import annotations

from kernbench.torch_bridge.memory.host_heap import LEAST_BYTES, TURNS, HostHeap


def test_memory_is_given_back_when_the_process_has_grown_by_a_fourth() -> None:
    size, trims = [LEAST_BYTES * 8], list[int]()

    def trim() -> None:
        trims.append(size[0])
        size[0] -= LEAST_BYTES

    heap = HostHeap(lambda: size[0], trim)
    for _ in range(12 * TURNS):
        size[0] += LEAST_BYTES // TURNS // 2
        heap.next_turn()
    # A fourth of 8, then a fourth of the 9.5 that were left, at the next look.
    assert [trim / LEAST_BYTES for trim in trims] == [10.5, 12.0]


def test_a_real_process_has_a_size_and_a_search() -> None:
    heap = HostHeap()
    assert heap._trim() in (0, 1, None)
    assert heap._size_bytes() > 1 << 20
